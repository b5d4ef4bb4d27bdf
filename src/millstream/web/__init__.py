"""What every HTTP endpoint shares: loopback binds, Host and Origin checks, one-time links, security headers, server-sent events.

Imported by modules (`millstream.web.server`, …), so that who needs one does not load the others.
"""
