import java.lang.reflect.Method;
import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * Reads COUNT records of one partition from its beginning, without a group, and prints the bytes of
 * record values and the seconds. Fails if nothing arrives for a minute. It is compiled against each
 * client version that it is run with.
 */
public class Fetch {
    private static final long SILENCE_NANOS = 60_000_000_000L;

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], topic = args[1];
        long count = Long.parseLong(args[2]);
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("enable.auto.commit", "false");
        config.put(
                "key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        config.put("value.deserializer",
                "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config);
        TopicPartition partition = new TopicPartition(topic, 0);
        consumer.assign(Collections.singletonList(partition));
        consumer.seek(partition, 0);
        long seen = 0, bytes = 0, last = -1, began = System.nanoTime(), arrived = began;
        while (seen < count && System.nanoTime() - arrived < SILENCE_NANOS) {
            ConsumerRecords<byte[], byte[]> records = poll(consumer);
            if (!records.isEmpty()) {
                arrived = System.nanoTime();
            }
            for (ConsumerRecord<byte[], byte[]> record : records) {
                if (record.offset() != last + 1) {
                    throw new IllegalStateException("offset " + record.offset() + " after " + last);
                }
                last = record.offset();
                seen++;
                bytes += record.value().length;
            }
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        if (seen < count) {
            throw new IllegalStateException(seen + " of " + count + " records arrived");
        }
        System.out.println(bytes + " " + seconds);
        consumer.close();
    }

    @SuppressWarnings("unchecked")
    private static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer)
            throws Exception {
        // 4.x has no poll(long), and versions before 2.0 have no poll(Duration).
        try {
            Method modern
                    = KafkaConsumer.class.getMethod("poll", Class.forName("java.time.Duration"));
            return (ConsumerRecords<byte[], byte[]>) modern.invoke(
                    consumer, java.time.Duration.ofMillis(500));
        } catch (NoSuchMethodException old) {
            return (ConsumerRecords<byte[], byte[]>)
                    KafkaConsumer.class.getMethod("poll", long.class)
                            .invoke(consumer, 500L);
        }
    }
}
