import java.util.Arrays;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Sends records at a steady pace. Prints "mark" after the warm-up and when all measured records are
 * acknowledged, and then the 50th and the 99th percentile of the time from send() to the
 * acknowledgement, in ms.
 */
public class Paced {
    private static volatile Exception failure;

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], topic = args[1];
        int size = Integer.parseInt(args[2]), rate = Integer.parseInt(args[3]);
        int warmUp = rate * Integer.parseInt(args[4]), count = rate * Integer.parseInt(args[5]);
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("acks", "all");
        config.put("linger.ms", args[6]);
        config.put("batch.size", args[7]);
        config.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        config.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        byte[] value = new byte[size];
        new Random(0).nextBytes(value);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config);
        send(producer, topic, value, rate, warmUp);
        System.out.println("mark");
        long[] taken = send(producer, topic, value, rate, count);
        System.out.println("mark");
        Arrays.sort(taken);
        System.out.println(percentile(taken, 0.5) + " " + percentile(taken, 0.99));
        producer.close();
    }

    private static long[] send(KafkaProducer<byte[], byte[]> producer, String topic, byte[] value,
            int rate, int count) throws Exception {
        long[] taken = new long[count];
        long start = System.nanoTime();
        for (int sent = 0; sent < count; sent++) {
            // parkNanos may return early.
            for (long wait;
                    (wait = start + sent * 1_000_000_000L / rate - System.nanoTime()) > 0;) {
                LockSupport.parkNanos(wait);
            }
            int number = sent;
            long began = System.nanoTime();
            producer.send(new ProducerRecord<>(topic, value), (written, why) -> {
                taken[number] = System.nanoTime() - began;
                if (why != null) {
                    failure = why;
                }
            });
        }
        producer.flush();
        if (failure != null) {
            throw failure;
        }
        return taken;
    }

    private static double percentile(long[] sorted, double share) {
        return sorted[(int) Math.ceil(sorted.length * share) - 1] / 1e6;
    }
}
