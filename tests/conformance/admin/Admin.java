// What Kafka's own Java clients ask of a broker for its administrators, sentence by sentence; each prints whether it is so.
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.serialization.*;

public class Admin {
    interface Step { void run() throws Exception; }

    static String address;
    static org.apache.kafka.clients.admin.Admin admin;

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        if (arguments.length > 1) {
            sessions(arguments[1]);
            return;
        }
        admin = client("admin");
        say("topics", Admin::topics);
        say("settings", Admin::settings);
        say("records", Admin::records);
        say("transactions", Admin::transactions);
        say("hanging transaction", Admin::hanging);
        say("static members of a classic group", () -> members("classic"));
        say("static members of a new group", () -> members("consumer"));
        say("positions of groups", Admin::positions);
        say("access", Admin::access);
        say("users", Admin::users);
        say("quotas", Admin::quotas);
        say("the cluster", Admin::cluster);
        say("what is left out", Admin::leftOut);
        admin.close(Duration.ofSeconds(5));
    }

    static void say(String name, Step step) {
        String wrong = "";
        try {
            step.run();
        } catch (Throwable e) {
            Throwable cause = e instanceof ExecutionException ? e.getCause() : e;
            wrong = (cause + " at " + Arrays.stream(e.getStackTrace())
                .filter(f -> f.getClassName().equals("Admin")).findFirst().orElse(null)).replace('"', '\'').replace('\n', ' ');
            e.printStackTrace();
        }
        System.out.println("{\"name\": \"" + name + "\", \"wrong\": \"" + wrong + "\"}");
    }

    static org.apache.kafka.clients.admin.Admin client(String id) {
        return org.apache.kafka.clients.admin.Admin.create(
            Map.of("bootstrap.servers", address, "client.id", id, "request.timeout.ms", "15000", "default.api.timeout.ms", "20000"));
    }

    static void same(Object expected, Object got) {
        if (!Objects.equals(expected, got)) throw new AssertionError("expected " + expected + ", got " + got);
    }

    static void holds(boolean condition, String what) {
        if (!condition) throw new AssertionError(what);
    }

    static <T> T of(KafkaFuture<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    static void refused(Class<? extends Throwable> kind, KafkaFuture<?> future) throws Exception {
        try {
            future.get(30, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            if (kind.isInstance(e.getCause())) return;
            throw new AssertionError("expected " + kind.getSimpleName() + ", got " + e.getCause());
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", but it was done");
    }

    static void until(Callable<Boolean> condition, String what) throws Exception {
        long end = System.nanoTime() + 30_000_000_000L;
        while (!condition.call()) {
            holds(System.nanoTime() < end, "never: " + what);
            Thread.sleep(50);
        }
    }

    static KafkaProducer<String, String> producer(Map<String, Object> more) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", address));
        all.putAll(more);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, Map<String, Object> more) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", address, "group.id", group,
            "auto.offset.reset", "earliest", "enable.auto.commit", "false"));
        all.putAll(more);
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    static void fill(String topic, int count) throws Exception {
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (int i = 0; i < count; i++)
                producer.send(new ProducerRecord<>(topic, 0, 1000L + i, "k" + i, "v" + i)).get(20, TimeUnit.SECONDS);
        }
    }

    static void topics() throws Exception {
        of(admin.createTopics(List.of(new NewTopic("a", 3, (short) 1).configs(Map.of("retention.ms", "5000")))).all());
        refused(TopicExistsException.class, admin.createTopics(List.of(new NewTopic("a", 1, (short) 1))).all());
        refused(InvalidReplicationFactorException.class, admin.createTopics(List.of(new NewTopic("b", 1, (short) 3))).all());
        refused(InvalidTopicException.class, admin.createTopics(List.of(new NewTopic("a b", 1, (short) 1))).all());
        refused(InvalidConfigurationException.class,
            admin.createTopics(List.of(new NewTopic("b", 1, (short) 1).configs(Map.of("retention.ms", "x")))).all());
        CreateTopicsResult only = admin.createTopics(List.of(new NewTopic("b", Optional.of(2), Optional.empty())),
            new CreateTopicsOptions().validateOnly(true));
        same(2, of(only.numPartitions("b")));
        holds(of(admin.listTopics().names()).contains("a") && !of(admin.listTopics().names()).contains("b"), "what is only validated is not made");
        TopicDescription a = of(admin.describeTopics(List.of("a")).topicNameValues().get("a"));
        same(3, a.partitions().size());
        same(1, a.partitions().get(2).isr().size());
        same("a", of(admin.describeTopics(TopicCollection.ofTopicIds(List.of(a.topicId()))).topicIdValues().get(a.topicId())).name());
        of(admin.createPartitions(Map.of("a", NewPartitions.increaseTo(4))).all());
        refused(InvalidPartitionsException.class, admin.createPartitions(Map.of("a", NewPartitions.increaseTo(2))).all());
        until(() -> of(admin.describeTopics(List.of("a")).topicNameValues().get("a")).partitions().size() == 4, "four partitions");
        of(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(a.topicId()))).all());
        refused(UnknownTopicOrPartitionException.class, admin.deleteTopics(List.of("a")).all());
        refused(UnknownTopicOrPartitionException.class, admin.describeTopics(List.of("a")).allTopicNames());
    }

    static void change(ConfigResource of, AlterConfigOp.OpType how, String name, String value) throws Exception {
        of(admin.incrementalAlterConfigs(Map.of(of, List.of(new AlterConfigOp(new ConfigEntry(name, value), how)))).all());
    }

    static ConfigEntry setting(ConfigResource resource, String name) throws Exception {
        return of(admin.describeConfigs(List.of(resource),
            new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true)).values().get(resource)).get(name);
    }

    static void settings() throws Exception {
        of(admin.createTopics(List.of(new NewTopic("s", 1, (short) 1))).all());
        ConfigResource s = new ConfigResource(ConfigResource.Type.TOPIC, "s");
        same(ConfigEntry.ConfigSource.DEFAULT_CONFIG, setting(s, "cleanup.policy").source());
        change(s, AlterConfigOp.OpType.APPEND, "cleanup.policy", "compact");
        same("delete,compact", setting(s, "cleanup.policy").value());
        same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, setting(s, "cleanup.policy").source());
        change(s, AlterConfigOp.OpType.SUBTRACT, "cleanup.policy", "delete");
        same("compact", setting(s, "cleanup.policy").value());
        change(s, AlterConfigOp.OpType.SET, "retention.ms", "1234");
        same("compact", setting(s, "cleanup.policy").value()); // the others stay
        change(s, AlterConfigOp.OpType.DELETE, "cleanup.policy", "");
        same("delete", setting(s, "cleanup.policy").value());
        same("1234", setting(s, "retention.ms").value());
        holds(!setting(s, "retention.ms").synonyms().isEmpty(), "it says where a setting comes from");
        refused(InvalidConfigurationException.class, admin.incrementalAlterConfigs(Map.of(s,
            List.of(new AlterConfigOp(new ConfigEntry("no.such.setting", "1"), AlterConfigOp.OpType.SET)))).all());
        refused(InvalidConfigurationException.class, admin.incrementalAlterConfigs(Map.of(s,
            List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "-5"), AlterConfigOp.OpType.SET)))).all());
        ConfigResource g = new ConfigResource(ConfigResource.Type.GROUP, "g");
        holds(of(admin.describeConfigs(List.of(g)).all()).containsKey(g), "groups have settings");
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "0");
        same("0", setting(broker, "node.id").value());
        refused(InvalidRequestException.class, admin.incrementalAlterConfigs(Map.of(broker,
            List.of(new AlterConfigOp(new ConfigEntry("num.partitions", "10"), AlterConfigOp.OpType.SET)))).all());
        change(broker, AlterConfigOp.OpType.SET, "max.connections", "5000");
        same("5000", setting(broker, "max.connections").value());
        same(ConfigEntry.ConfigSource.DYNAMIC_BROKER_CONFIG, setting(broker, "max.connections").source());
        change(broker, AlterConfigOp.OpType.DELETE, "max.connections", "");
        same("10000", setting(broker, "max.connections").value());
        change(g, AlterConfigOp.OpType.SET, "consumer.session.timeout.ms", "50000");
        same("50000", setting(g, "consumer.session.timeout.ms").value());
    }

    static long offset(TopicPartition at, OffsetSpec spec) throws Exception {
        return of(admin.listOffsets(Map.of(at, spec)).partitionResult(at)).offset();
    }

    static void records() throws Exception {
        of(admin.createTopics(List.of(new NewTopic("r", 1, (short) 1).configs(Map.of("retention.ms", "-1")))).all());
        TopicPartition r = new TopicPartition("r", 0);
        fill("r", 10);
        same(0L, offset(r, OffsetSpec.earliest()));
        same(10L, offset(r, OffsetSpec.latest()));
        same(9L, offset(r, OffsetSpec.maxTimestamp()));
        same(4L, offset(r, OffsetSpec.forTimestamp(1004)));
        same(-1L, offset(r, OffsetSpec.forTimestamp(9999)));
        same(3L, of(admin.deleteRecords(Map.of(r, RecordsToDelete.beforeOffset(3))).lowWatermarks().get(r)).lowWatermark());
        same(3L, offset(r, OffsetSpec.earliest()));
        refused(OffsetOutOfRangeException.class, admin.deleteRecords(Map.of(r, RecordsToDelete.beforeOffset(99))).all());
        try (KafkaConsumer<String, String> consumer = consumer("none", Map.of())) {
            consumer.assign(List.of(r));
            consumer.seek(r, 3);
            same("v3", consumer.poll(Duration.ofSeconds(10)).iterator().next().value());
        }
    }

    static void transactions() throws Exception {
        of(admin.createTopics(List.of(new NewTopic("x", 1, (short) 1))).all());
        TopicPartition x = new TopicPartition("x", 0);
        KafkaProducer<String, String> producer = producer(Map.of("transactional.id", "tx", "transaction.timeout.ms", "60000"));
        producer.initTransactions();
        TransactionDescription none = of(admin.describeTransactions(List.of("tx")).description("tx"));
        same(TransactionState.EMPTY, none.state());
        producer.beginTransaction();
        producer.send(new ProducerRecord<>("x", "k", "v")).get(20, TimeUnit.SECONDS);
        TransactionDescription open = of(admin.describeTransactions(List.of("tx")).description("tx"));
        same(TransactionState.ONGOING, open.state());
        same(Set.of(x), open.topicPartitions());
        same(60000L, open.transactionTimeoutMs());
        Collection<TransactionListing> ongoing = of(admin.listTransactions(
            new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING))).all());
        same(List.of("tx"), ongoing.stream().map(TransactionListing::transactionalId).toList());
        same(0, of(admin.listTransactions(new ListTransactionsOptions().filterProducerIds(Set.of(123456L))).all()).size());
        same(0, of(admin.listTransactions(new ListTransactionsOptions().filterOnDuration(3_600_000)).all()).size());
        List<ProducerState> writing = of(admin.describeProducers(List.of(x)).partitionResult(x)).activeProducers();
        same(open.producerId(), writing.get(0).producerId());
        same(0L, writing.get(0).currentTransactionStartOffset().getAsLong());
        producer.commitTransaction();
        until(() -> of(admin.describeTransactions(List.of("tx")).description("tx")).state() == TransactionState.COMPLETE_COMMIT,
            "it is committed");
        holds(of(admin.describeProducers(List.of(x)).partitionResult(x)).activeProducers().get(0)
            .currentTransactionStartOffset().isEmpty(), "nothing is open");
        of(admin.fenceProducers(List.of("tx")).all());
        producer.beginTransaction();
        try {
            producer.send(new ProducerRecord<>("x", "k", "late")).get(20, TimeUnit.SECONDS);
            throw new AssertionError("a fenced producer wrote");
        } catch (ExecutionException e) {
            holds(e.getCause() instanceof ProducerFencedException || e.getCause() instanceof InvalidProducerEpochException
                || e.getCause() instanceof KafkaException, "it is fenced");
        }
        producer.close(Duration.ZERO);
        refused(TransactionalIdNotFoundException.class, admin.describeTransactions(List.of("never")).all());
    }

    static void hanging() throws Exception {
        of(admin.createTopics(List.of(new NewTopic("h", 1, (short) 1))).all());
        TopicPartition h = new TopicPartition("h", 0);
        KafkaProducer<String, String> producer = producer(Map.of("transactional.id", "hanging"));
        producer.initTransactions();
        producer.beginTransaction();
        producer.send(new ProducerRecord<>("h", "k", "v")).get(20, TimeUnit.SECONDS);
        ProducerState state = of(admin.describeProducers(List.of(h)).partitionResult(h)).activeProducers().get(0);
        same(0L, of(admin.listOffsets(Map.of(h, OffsetSpec.latest()),
            new ListOffsetsOptions(IsolationLevel.READ_COMMITTED)).partitionResult(h)).offset());
        of(admin.abortTransaction(new AbortTransactionSpec(h, state.producerId(), (short) state.producerEpoch(),
            state.coordinatorEpoch().orElse(0))).all());
        same(2L, of(admin.listOffsets(Map.of(h, OffsetSpec.latest()),
            new ListOffsetsOptions(IsolationLevel.READ_COMMITTED)).partitionResult(h)).offset());
        producer.close(Duration.ZERO);
    }

    static void members(String protocol) throws Exception {
        String group = "static-" + protocol, topic = "in-" + protocol;
        of(admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "-1")))).all());
        fill(topic, 5);
        TopicPartition at = new TopicPartition(topic, 0);
        Map<String, Object> mine = Map.of("group.protocol", protocol, "group.instance.id", "one");
        KafkaConsumer<String, String> one = consumer(group, mine);
        one.subscribe(List.of(topic));
        until(() -> one.poll(Duration.ofMillis(100)).count() > 0, "it reads");
        one.commitSync();
        ConsumerGroupDescription told = of(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
        same(GroupState.STABLE, told.groupState());
        same(protocol.equals("classic") ? GroupType.CLASSIC : GroupType.CONSUMER, told.type());
        MemberDescription member = told.members().iterator().next();
        same("one", member.groupInstanceId().orElse(""));
        same(2, member.assignment().topicPartitions().size());
        refused(UnknownMemberIdException.class,
            admin.alterConsumerGroupOffsets(group, Map.of(at, new OffsetAndMetadata(1))).all()); // while it is active
        refused(GroupSubscribedToTopicException.class, admin.deleteConsumerGroupOffsets(group, Set.of(at)).all());
        refused(GroupNotEmptyException.class, admin.deleteConsumerGroups(List.of(group)).all());
        String before = member.consumerId();
        one.close(CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.DEFAULT));
        // A static member that goes leaves its place to the next one of its name.
        told = of(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
        same(1, told.members().size());
        try (KafkaConsumer<String, String> again = consumer(group, mine)) {
            again.subscribe(List.of(topic));
            until(() -> {
                again.poll(Duration.ofMillis(100));
                return again.assignment().size() == 2;
            }, "it has its partitions again");
            told = of(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
            same(1, told.members().size());
            holds(!told.members().iterator().next().consumerId().equals(before), "it has another id");
        }
        of(admin.removeMembersFromConsumerGroup(group,
            new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("one")))).all());
        until(() -> of(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group)).members().isEmpty(),
            "an administrator has removed it");
    }

    static void positions() throws Exception {
        TopicPartition at = new TopicPartition("in-classic", 0);
        for (String group : List.of("static-classic", "static-consumer")) {
            TopicPartition own = new TopicPartition("in-" + group.substring(7), 0);
            same(5L, of(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(own).offset());
            of(admin.alterConsumerGroupOffsets(group, Map.of(own, new OffsetAndMetadata(2, "why"))).all());
            OffsetAndMetadata moved = of(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(own);
            same(2L, moved.offset());
            same("why", moved.metadata());
            of(admin.deleteConsumerGroupOffsets(group, Set.of(own)).all());
            same(null, of(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(own));
        }
        of(admin.alterConsumerGroupOffsets("outside", Map.of(at, new OffsetAndMetadata(1))).all());
        Set<String> names = new TreeSet<>();
        of(admin.listGroups().all()).forEach(listing -> names.add(listing.groupId()));
        holds(names.containsAll(Set.of("outside", "static-classic", "static-consumer")), "all are listed: " + names);
        same(1, (int) of(admin.listGroups(new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))).all()).stream()
            .filter(l -> l.groupId().equals("static-consumer")).count());
        of(admin.deleteConsumerGroups(List.of("outside", "static-classic", "static-consumer")).all());
        refused(GroupIdNotFoundException.class, admin.deleteConsumerGroups(List.of("outside")).all());
        refused(GroupIdNotFoundException.class, admin.describeConsumerGroups(List.of("outside")).all());
    }

    static void access() throws Exception {
        AclBinding acl = new AclBinding(new ResourcePattern(ResourceType.TOPIC, "a-", PatternType.PREFIXED),
            new AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW));
        of(admin.createAcls(List.of(acl)).all());
        same(List.of(acl), List.copyOf(of(admin.describeAcls(AclBindingFilter.ANY).values())));
        AclBindingFilter matching = new AclBindingFilter(new ResourcePatternFilter(ResourceType.TOPIC, "a-b", PatternType.MATCH),
            AccessControlEntryFilter.ANY);
        same(1, of(admin.describeAcls(matching).values()).size());
        same(1, of(admin.deleteAcls(List.of(matching)).all()).size());
        same(0, of(admin.describeAcls(AclBindingFilter.ANY).values()).size());
    }

    static void users() throws Exception {
        ScramCredentialInfo kind = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096);
        of(admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("bob", kind, "secret"))).all());
        same(List.of(kind), of(admin.describeUserScramCredentials().all()).get("bob").credentialInfos());
        of(admin.alterUserScramCredentials(List.of(new UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_512))).all());
        holds(!of(admin.describeUserScramCredentials().all()).containsKey("bob"), "he is gone");
        refused(ResourceNotFoundException.class, admin.alterUserScramCredentials(
            List.of(new UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_512))).all());
    }

    static void limit(Map<String, String> entity, String key, Double value) throws Exception {
        of(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(new ClientQuotaEntity(entity),
            List.of(new ClientQuotaAlteration.Op(key, value))))).all());
    }

    static void quotas() throws Exception {
        Map<String, String> limited = Map.of("client-id", "limited"), host = Map.of("ip", "10.1.2.3");
        limit(limited, "controller_mutation_rate", 1.0);
        limit(host, "connection_creation_rate", 7.0);
        Map<ClientQuotaEntity, Map<String, Double>> found = of(admin.describeClientQuotas(ClientQuotaFilter.all()).entities());
        same(Map.of("controller_mutation_rate", 1.0), found.get(new ClientQuotaEntity(limited)));
        same(Map.of("connection_creation_rate", 7.0), found.get(new ClientQuotaEntity(host)));
        try (org.apache.kafka.clients.admin.Admin client = client("limited")) {
            of(client.createTopics(List.of(new NewTopic("q1", 13, (short) 1))).all()); // 11 at once, so 2 too many
            refused(ThrottlingQuotaExceededException.class, client.createTopics(List.of(new NewTopic("q2", 1, (short) 1)),
                new CreateTopicsOptions().retryOnQuotaViolation(false)).all());
            long start = System.nanoTime();
            of(client.createTopics(List.of(new NewTopic("q2", 5, (short) 1))).all()); // it waits and asks again by itself
            of(client.createPartitions(Map.of("q2", NewPartitions.increaseTo(6))).all());
            of(client.deleteTopics(List.of("q2")).all());
            holds(System.nanoTime() - start > 5_000_000_000L, "it was slowed down");
        }
        limit(limited, "controller_mutation_rate", null);
        limit(host, "connection_creation_rate", null);
        same(Map.of(), of(admin.describeClientQuotas(ClientQuotaFilter.all()).entities()));
    }

    static void cluster() throws Exception {
        DescribeClusterResult cluster = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
        same(1, of(cluster.nodes()).size());
        same(0, of(cluster.controller()).id());
        holds(of(cluster.clusterId()).length() == 22, "it has an id");
        holds(of(cluster.authorizedOperations()).contains(AclOperation.ALTER), "an administrator may alter it");
        same(0, of(admin.describeMetadataQuorum().quorumInfo()).leaderId());
        holds(of(admin.describeFeatures().featureMetadata()).finalizedFeatures().containsKey("transaction.version"), "features");
        of(admin.createTopics(List.of(new NewTopic("c", 1, (short) 1).configs(Map.of("retention.ms", "-1")))).all());
        TopicPartition c = new TopicPartition("c", 0);
        fill("c", 3);
        holds(of(admin.describeLogDirs(List.of(0)).allDescriptions()).get(0).values().iterator().next()
            .replicaInfos().get(c).size() > 0, "it says how large a partition is");
        same(0, of(admin.listPartitionReassignments().reassignments()).size());
        holds(of(admin.electLeaders(ElectionType.PREFERRED, Set.of(c)).partitions()).get(c)
            .map(e -> e instanceof ElectionNotNeededException).orElse(true), "the leader is the preferred one");
        same(Set.of(), Set.copyOf(of(admin.listConfigResources(Set.of(ConfigResource.Type.CLIENT_METRICS),
            new ListConfigResourcesOptions()).all())));
    }

    static void leftOut() throws Exception {
        refused(UnsupportedVersionException.class, admin.createDelegationToken().delegationToken());
        refused(UnsupportedVersionException.class, admin.updateFeatures(Map.of("group.version",
            new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)), new UpdateFeaturesOptions()).all());
        refused(UnsupportedVersionException.class, admin.describeStreamsGroups(List.of("g")).all());
    }

    /** A producer whose session ends again and again shows again who it is, and goes on. */
    static void sessions(String password) throws Exception {
        Map<String, Object> mine = Map.of("bootstrap.servers", address, "security.protocol", "SASL_PLAINTEXT",
            "sasl.mechanism", "SCRAM-SHA-256", "acks", "all", "retries", 0, "max.block.ms", 10_000,
            "sasl.jaas.config", "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"alice\" password=\""
                + password + "\";");
        say("sessions", () -> {
            try (KafkaProducer<String, String> producer = producer(mine)) {
                long end = System.nanoTime() + 9_000_000_000L;
                while (System.nanoTime() < end) {
                    producer.send(new ProducerRecord<>("sessions", "k", "v")).get(20, TimeUnit.SECONDS);
                    Thread.sleep(5);
                }
                double renewed = producer.metrics().entrySet().stream()
                    .filter(e -> e.getKey().name().equals("successful-reauthentication-total"))
                    .filter(e -> e.getKey().group().equals("producer-metrics"))
                    .mapToDouble(e -> ((Number) e.getValue().metricValue()).doubleValue()).max().orElse(0);
                holds(renewed >= 2, "it showed only " + renewed + " times again who it is");
            }
        });
    }
}
