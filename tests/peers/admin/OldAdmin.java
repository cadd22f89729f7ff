import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.config.ConfigResource;

/**
 * Topic operations of the AdminClient of 0.11; prints one line per step. It sends the oldest
 * versions: DescribeConfigs 0, AlterConfigs 0, CreateTopics 2.
 */
public class OldAdmin {
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
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", arguments[0]);
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "old");
        try (AdminClient admin = AdminClient.create(settings)) {
            NewTopic made = new NewTopic("old", 3, (short) 1)
                .configs(Collections.singletonMap("retention.ms", "5000"));
            step("validate",
                    ()
                            -> admin.createTopics(Arrays.asList(made),
                                            new CreateTopicsOptions().validateOnly(true))
                                       .all()
                                       .get());
            step("create", () -> admin.createTopics(Arrays.asList(made)).all().get());
            step("again", () -> admin.createTopics(Arrays.asList(made)).all().get());
            step("assigned",
                    ()
                            -> admin.createTopics(
                                            Arrays.asList(new NewTopic("assigned",
                                                    Collections.singletonMap(0, Arrays.asList(1)))))
                                       .all()
                                       .get());
            eventually("list", "[assigned, old]", () ->
                new TreeSet<>(admin.listTopics().names().get()));
            eventually("partitions", "3", () ->
                admin.describeTopics(Arrays.asList("old")).all().get().get("old").partitions()
                    .size());
            step("missing", () -> admin.describeTopics(Arrays.asList("never")).all().get());
            step("nodes", () -> admin.describeCluster().nodes().get().size());
            eventually("config", "=5000", () -> entry(admin, topic, "retention.ms"));
            step("alter",
                    ()
                            -> admin.alterConfigs(Collections.singletonMap(topic,
                                                          new Config(Arrays.asList(new ConfigEntry(
                                                                  "max.message.bytes", "2000")))))
                                       .all()
                                       .get());
            eventually("altered", "=2000", () -> entry(admin, topic, "max.message.bytes"));
            step("wrong",
                    ()
                            -> admin.alterConfigs(Collections.singletonMap(topic,
                                                          new Config(Arrays.asList(new ConfigEntry(
                                                                  "retention.ms", "x")))))
                                       .all()
                                       .get());
            step("delete", () -> admin.deleteTopics(Arrays.asList("old", "assigned")).all().get());
            step("gone", () -> admin.deleteTopics(Arrays.asList("old")).all().get());
        }
    }

    static String entry(AdminClient admin, ConfigResource resource, String name) throws Exception {
        ConfigEntry entry = admin.describeConfigs(Arrays.asList(resource)).all().get().get(resource)
            .get(name);
        return entry.name() + "=" + entry.value() + " sensitive=" + entry.isSensitive()
            + " read-only=" + entry.isReadOnly();
    }
}
