import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends one batch of 100 records to a compacted topic, ten of them without a key, and prints the
 * result of each; then the same without the invalid ones.
 */
public class InvalidRecords {
    static final int RECORDS = 100;

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", arguments[0],
            // One batch: nothing is sent before the flush, and all records fit.
            "linger.ms", 300_000, "delivery.timeout.ms", 600_000, "batch.size", 1_000_000,
            "compression.type", arguments[1]));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            NewTopic topic = new NewTopic("invalid-" + arguments[1], 1, (short) 1)
                .configs(Map.of("cleanup.policy", "compact"));
            admin.createTopics(List.of(topic)).all().get();
        }
        try (Producer<String, String> producer
                = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            send(producer, "invalid-" + arguments[1], true);
            send(producer, "invalid-" + arguments[1], false);
        }
    }

    static void send(Producer<String, String> producer, String topic, boolean withInvalid)
            throws Exception {
        Map<Integer, Future<RecordMetadata>> sent = new TreeMap<>();
        for (int n = 0; n < RECORDS; n++) {
            boolean isInvalid = n % 10 == 7;
            if (!isInvalid || withInvalid) {
                sent.put(n,
                        producer.send(new ProducerRecord<>(
                                topic, isInvalid ? null : "key " + n, "value " + n)));
            }
        }
        producer.flush();
        for (Map.Entry<Integer, Future<RecordMetadata>> one : sent.entrySet()) {
            try {
                System.out.println(one.getKey() + " offset " + one.getValue().get().offset());
            } catch (ExecutionException failed) {
                System.out.println(one.getKey() + " " + failed.getCause());
            }
        }
    }
}
