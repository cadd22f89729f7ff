import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;

/**
 * Topic operations of the current Admin client; prints one line per step. It uses the newest
 * common versions.
 */
public class NewAdmin {
    interface Step { Object run() throws Exception; }

    static void step(String name, Step step) throws Exception {
        try {
            System.out.println(name + " " + step.run());
        } catch (ExecutionException failed) {
            System.out.println(name + " " + failed.getCause().getClass().getSimpleName() + ": "
                    + failed.getCause().getMessage());
        }
    }

    /** Retry for at most a minute: Kafka's brokers see a change a moment after its controller. */
    static void eventually(String name, String expected, Step step) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        String result = "";
        while (System.nanoTime() < deadline) {
            try {
                result = String.valueOf(step.run());
            } catch (ExecutionException failed) {
                result = failed.getCause().toString();
            }
            if (result.contains(expected)) {
                break;
            }
            Thread.sleep(50);
        }
        System.out.println(name + " " + result);
    }

    public static void main(String[] arguments) throws Exception {
        // A request retried after a timeout would get another reply, for example that the topic
        // exists.
        Map<String, Object> settings = Map.of(
            "bootstrap.servers",
            arguments[0], "request.timeout.ms", "120000", "default.api.timeout.ms", "120000");
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "new");
        TopicPartition first = new TopicPartition("new", 0);
        try (Admin admin = Admin.create(settings)) {
            NewTopic made = new NewTopic("new", Optional.of(2), Optional.empty())
                .configs(Map.of("retention.ms", "5000"));
            CreateTopicsResult created = admin.createTopics(List.of(made));
            step("create", () ->
                created.numPartitions("new").get() + " x " + created.replicationFactor("new")
                    .get());
            step("created config", () -> created.config("new").get().get("retention.ms").source());
            Uuid id = created.topicId("new").get();
            eventually("by id", "new", () ->
                admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get()
                    .get(id).name());
            step("unknown id", () ->
                admin.describeTopics(TopicCollection.ofTopicIds(List.of(new Uuid(1, 2))))
                    .allTopicIds().get());
            eventually("described", "2", () ->
                admin.describeTopics(List.of("new")).allTopicNames().get().get("new").partitions()
                    .size());
            step("missing", () -> admin.describeTopics(List.of("never")).allTopicNames().get());
            step("invalid", () ->
                admin.createTopics(List.of(new NewTopic("a b", 1, (short) 1))).all().get());
            step("more",
                    ()
                            -> admin.createPartitions(
                                            Map.of("new",
                                                    NewPartitions.increaseTo(
                                                            4, List.of(List.of(1), List.of(1)))))
                                       .all()
                                       .get());
            step("fewer", () ->
                admin.createPartitions(Map.of("new", NewPartitions.increaseTo(1))).all().get());
            step("append",
                    ()
                            -> admin
                                       .incrementalAlterConfigs(Map.of(topic,
                                               List.of(new AlterConfigOp(
                                                               new ConfigEntry(
                                                                       "cleanup.policy", "compact"),
                                                               AlterConfigOp.OpType.APPEND),
                                                       new AlterConfigOp(
                                                               new ConfigEntry(
                                                                       "retention.ms", null),
                                                               AlterConfigOp.OpType.DELETE))))
                                       .all()
                                       .get());
            eventually("config", "delete,compact", () -> {
                DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true)
                    .includeDocumentation(true);
                ConfigEntry entry = admin.describeConfigs(List.of(topic), options).all().get()
                    .get(topic).get("cleanup.policy");
                return entry.value() + " " + entry.source() + " " + entry.type() + " "
                    + entry.synonyms() + " " + !entry.documentation().isEmpty();
            });
            step("offsets", () ->
                admin.listOffsets(Map.of(first, OffsetSpec.latest())).all().get().get(first)
                    .offset());
            eventually("log dirs", "4", () ->
                admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).values().iterator()
                    .next().replicaInfos().size());
            step("producers", () ->
                admin.describeProducers(List.of(first)).all().get().get(first).activeProducers());
            step("delete records", () ->
                admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(-1))).lowWatermarks()
                    .get(first).get().lowWatermark());
            step("too far", () ->
                admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(7))).lowWatermarks()
                    .get(first).get());
            step("cluster",
                    ()
                            -> new TreeSet<>(
                                    admin.describeCluster(
                                                 new DescribeClusterOptions()
                                                         .includeAuthorizedOperations(true))
                                            .authorizedOperations()
                                            .get()));
            step("delete", () ->
                admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get());
            step("gone", () -> admin.deleteTopics(List.of("new")).all().get());
        }
    }
}
