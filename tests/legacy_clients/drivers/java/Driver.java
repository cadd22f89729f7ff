// Drives one version of Apache Kafka's Java client (0.8.2 ... 4.x) by the command line described in
// ../README.md. Compiled once per client version; what differs between versions is reached by
// reflection, and only there.

import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

public final class Driver {
    static final PrintStream OUT
            = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false);
    // Of the key stores that are made of PEM files.
    private static final String PASSWORD = "changeit";

    public static void main(String[] words) {
        try {
            Map<String, String> options = new HashMap<>();
            List<String> spans = new ArrayList<>();
            parse(words, options, spans);
            if (words[0].equals("produce")) {
                produce(options);
            } else if (words[0].equals("transaction")) {
                transaction(options, spans.get(0));
            } else {
                // Both are absent from the build for 0.8.2, whose consumer was never finished.
                Class.forName(words[0].equals("group") ? "Group" : "Consume")
                        .getMethod("run", Map.class, List.class)
                        .invoke(null, options, spans);
            }
            OUT.flush();
            // A hung close() must not turn success into a timeout: everything owed has been
            // printed.
            Runtime.getRuntime().halt(0);
        } catch (Throwable failure) {
            OUT.flush();
            while (failure.getCause() != null
                    && failure instanceof java.lang.reflect.InvocationTargetException)
                failure = failure.getCause();
            System.err.println("driver: " + failure
                    + (failure.getCause() == null ? "" : " / " + failure.getCause()));
            Runtime.getRuntime().halt(1);
        }
    }

    static void parse(String[] words, Map<String, String> options, List<String> spans) {
        for (int i = 1; i < words.length; i++) {
            if (!words[i].startsWith("--")) spans.add(words[i]);
            else if (words[i].equals("--idempotent")) options.put("idempotent", "true");
            else if (words[i].equals("--property"))
                options.merge("property", words[++i], (before, one) -> before + "\n" + one);
            else options.put(words[i].substring(2), words[++i]);
        }
    }

    static long timeoutMs(Map<String, String> options) {
        return (long) (1000 * Double.parseDouble(options.getOrDefault("timeout", "30")));
    }

    static Properties common(Map<String, String> options) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        if (options.containsKey("client-id")) settings.put("client.id", options.get("client-id"));
        String mechanism = options.get("sasl");
        String ca = options.get("tls-ca");
        if (mechanism != null || ca != null)
            settings.put("security.protocol",
                    (mechanism == null ? "" : "SASL_") + (ca == null ? "PLAINTEXT" : "SSL"));
        if (mechanism != null) settings.put("sasl.mechanism", mechanism);
        if (options.containsKey("user")) logIn(mechanism, options.get("user"));
        if (ca != null) trust(ca, settings);
        if (options.containsKey("tls-certificate"))
            present(options.get("tls-certificate"), options.get("tls-key"), settings);
        for (String one : options.getOrDefault("property", "").split("\n")) {
            String[] pair = one.split("=", 2);
            if (pair.length == 2 && pair[0].startsWith("java."))
                System.setProperty(pair[0], pair[1]);
            else if (pair.length == 2) settings.put(pair[0], pair[1]);
        }
        return settings;
    }

    // A JAAS file is the one way that every version since 0.10.0 knows; sasl.jaas.config came with
    // 0.10.2.
    private static void logIn(String mechanism, String user) throws Exception {
        int colon = user.indexOf(':');
        File file = File.createTempFile("jaas", ".conf");
        file.deleteOnExit();
        String module = mechanism.startsWith("SCRAM") ? "scram.Scram" : "plain.Plain";
        String entry = "KafkaClient { org.apache.kafka.common.security." + module + "LoginModule "
                + "required username=" + quoted(user.substring(0, colon))
                + " password=" + quoted(user.substring(colon + 1)) + "; };";
        Files.write(file.toPath(), entry.getBytes(StandardCharsets.UTF_8));
        System.setProperty("java.security.auth.login.config", file.getPath());
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    // PEM trust stores came with 2.7; a JKS file is understood by all.
    private static void trust(String ca, Properties settings) throws Exception {
        KeyStore store = KeyStore.getInstance("JKS");
        store.load(null, null);
        int index = 0;
        for (Certificate one : certificates(ca)) store.setCertificateEntry("ca" + index++, one);
        settings.put("ssl.truststore.location", written(store, "trust"));
        settings.put("ssl.truststore.password", PASSWORD);
        settings.put("ssl.truststore.type", "JKS");
    }

    // The same for key stores. The key is in PKCS#8, without a passphrase.
    private static void present(String certificate, String key, Properties settings)
            throws Exception {
        KeyStore store = KeyStore.getInstance("JKS");
        store.load(null, null);
        String pem = new String(Files.readAllBytes(Paths.get(key)), StandardCharsets.US_ASCII);
        byte[] der = Base64.getMimeDecoder().decode(pem.replaceAll("-----[A-Z ]+-----", ""));
        store.setKeyEntry("client",
                KeyFactory.getInstance("RSA").generatePrivate(new PKCS8EncodedKeySpec(der)),
                PASSWORD.toCharArray(), certificates(certificate).toArray(new Certificate[0]));
        settings.put("ssl.keystore.location", written(store, "key"));
        settings.put("ssl.keystore.password", PASSWORD);
        settings.put("ssl.key.password", PASSWORD);
        settings.put("ssl.keystore.type", "JKS");
    }

    private static Collection<? extends Certificate> certificates(String file) throws Exception {
        try (FileInputStream pem = new FileInputStream(file)) {
            return CertificateFactory.getInstance("X.509").generateCertificates(pem);
        }
    }

    private static String written(KeyStore store, String name) throws Exception {
        File file = File.createTempFile(name, ".jks");
        file.deleteOnExit();
        try (FileOutputStream out = new FileOutputStream(file)) {
            store.store(out, PASSWORD.toCharArray());
        }
        return file.getPath();
    }

    private static final class Sent {
        final String topic;
        final int partition;
        final Future<RecordMetadata> outcome;

        Sent(String topic, int partition, Future<RecordMetadata> outcome) {
            this.topic = topic;
            this.partition = partition;
            this.outcome = outcome;
        }
    }

    private static final Sent END = new Sent(null, 0, null);

    private static void produce(Map<String, String> options) throws Exception {
        Properties settings = common(options);
        String bytes = "org.apache.kafka.common.serialization.ByteArraySerializer";
        settings.put("key.serializer", bytes);
        settings.put("value.serializer", bytes);
        settings.put("compression.type", options.getOrDefault("codec", "none"));
        if (options.containsKey("acks")) settings.put("acks", options.get("acks"));
        if (options.containsKey("linger")) settings.put("linger.ms", options.get("linger"));
        if (options.containsKey("batch-bytes"))
            settings.put("batch.size", options.get("batch-bytes"));
        String patience = Long.toString(timeoutMs(options));
        settings.put("max.block.ms", patience);
        settings.put("metadata.fetch.timeout.ms", patience);
        if (options.containsKey("idempotent")) settings.put("enable.idempotence", "true");
        final KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        // Bounded: a producer that is not answered must stop reading, not fill the heap.
        final BlockingQueue<Sent> queue = new LinkedBlockingQueue<>(10000);
        final long wait = timeoutMs(options);
        Thread reader = new Thread(() -> feed(producer, queue));
        reader.setDaemon(true);
        reader.start();
        for (Sent sent = queue.take(); sent != END; sent = queue.take()) {
            if (sent.outcome == null) throw new IllegalStateException(sent.topic);
            RecordMetadata done = sent.outcome.get(wait, TimeUnit.MILLISECONDS);
            OUT.print(sent.topic + "\t" + sent.partition + "\t" + done.offset() + "\n");
            if (queue.isEmpty()
                    || !queue.peek().equals(END) && queue.peek().outcome != null
                            && !queue.peek().outcome.isDone())
                OUT.flush();
        }
        OUT.flush();
        producer.close();
    }

    private static void transaction(Map<String, String> options, String id) throws Exception {
        Properties settings = common(options);
        String bytes = "org.apache.kafka.common.serialization.ByteArraySerializer";
        settings.put("key.serializer", bytes);
        settings.put("value.serializer", bytes);
        settings.put("max.block.ms", Long.toString(timeoutMs(options)));
        settings.put("transactional.id", id);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        long began = System.nanoTime();
        try {
            // Since 0.11.
            KafkaProducer.class.getMethod("initTransactions").invoke(producer);
            OUT.println("ready");
        } catch (java.lang.reflect.InvocationTargetException refused) {
            Throwable cause = refused.getCause();
            while (cause.getCause() != null) cause = cause.getCause();
            OUT.println(
                    (System.nanoTime() - began) / 1e9 + "\t" + cause.getClass().getSimpleName());
        }
    }

    private static void feed(KafkaProducer<byte[], byte[]> producer, BlockingQueue<Sent> queue) {
        try {
            BufferedReader lines = new BufferedReader(
                    new InputStreamReader(System.in, StandardCharsets.US_ASCII));
            Constructor<?> longest = longestConstructor();
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] field = line.split("\t", -1);
                queue.put(new Sent(field[0], Integer.parseInt(field[1]),
                        producer.send(record(longest, field))));
            }
            queue.put(END);
        } catch (Throwable failure) {
            queue.clear();
            queue.offer(new Sent(
                    failure + (failure.getCause() == null ? "" : " / " + failure.getCause()), 0,
                    null));
        }
    }

    // (topic, partition, key, value) until 0.9, with a timestamp from 0.10, with headers from 0.11.
    private static Constructor<?> longestConstructor() {
        Constructor<?> longest = null;
        for (Constructor<?> one : ProducerRecord.class.getConstructors())
            if (longest == null
                    || one.getParameterTypes().length > longest.getParameterTypes().length)
                longest = one;
        return longest;
    }

    @SuppressWarnings("unchecked")
    private static ProducerRecord<byte[], byte[]> record(Constructor<?> longest, String[] field)
            throws Exception {
        Integer partition = Integer.valueOf(field[1]);
        byte[] key = decoded(field[3]);
        byte[] value = decoded(field[4]);
        Object[] arguments;
        if (longest.getParameterTypes().length == 4)
            arguments = new Object[] {field[0], partition, key, value};
        else {
            Long timestamp = field[2].equals("-") ? null : Long.valueOf(field[2]);
            if (longest.getParameterTypes().length == 5)
                arguments = new Object[] {field[0], partition, timestamp, key, value};
            else
                arguments = new Object[] {
                        field[0], partition, timestamp, key, value, headers(field[5])};
        }
        return (ProducerRecord<byte[], byte[]>) longest.newInstance(arguments);
    }

    private static Collection<Object> headers(String text) throws Exception {
        List<Object> headers = new ArrayList<>();
        if (text.equals("-")) return headers;
        Constructor<?> make = Class.forName("org.apache.kafka.common.header.internals.RecordHeader")
                                      .getConstructor(String.class, byte[].class);
        for (String one : text.split(",")) {
            int equals = one.indexOf('=');
            headers.add(make.newInstance(URLDecoder.decode(one.substring(0, equals), "UTF-8"),
                    decoded(one.substring(equals + 1))));
        }
        return headers;
    }

    static byte[] decoded(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }

    static String encoded(byte[] raw) {
        return raw == null ? "-" : Base64.getEncoder().encodeToString(raw);
    }
}
