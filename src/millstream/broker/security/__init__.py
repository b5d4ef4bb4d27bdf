"""Who may do what: TLS, SASL, users, access control lists, quotas; see the modules."""
