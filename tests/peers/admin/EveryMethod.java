import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;

/**
 * Calls every method of Admin and prints its name and result or error, one line each. Lines that
 * begin with `!` are failures: a method without a step here, a call that timed out, or connections
 * closed by the broker.
 */
public class EveryMethod {
    interface Step { Object run() throws Exception; }

    static final Set<String> CALLED = new TreeSet<>();
    static Admin admin;
    static double closed;

    /** `method` may be followed by a space and a word that distinguishes steps of one method. */
    static void step(String method, Step step) throws Exception {
        CALLED.add(method.split(" ")[0]);
        String result;
        try {
            result = String.valueOf(step.run());
        } catch (ExecutionException failed) {
            Throwable cause = failed.getCause();
            result = cause.getClass().getSimpleName() + ": " + cause.getMessage();
            if (cause instanceof org.apache.kafka.common.errors.TimeoutException) {
                System.out.println("! " + method + " timed out");
            }
        } catch (UnsupportedOperationException | IllegalStateException failed) {
            result = failed.getClass().getSimpleName() + ": " + failed.getMessage();
        }
        System.out.println(method + ": " + result);
        double now = closedConnections();
        if (now != closed) {
            System.out.println("! " + method + " closed connections");
        }
        closed = now;
    }

    static double closedConnections() {
        return admin.metrics().entrySet().stream()
            .filter(one -> one.getKey().name().equals("connection-close-total"))
            .mapToDouble(one -> (Double) one.getValue().metricValue()).sum();
    }

    /** The results of a map sorted by key; errors as class and message. */
    static <K> Object each(Map<K, ? extends KafkaFuture<?>> results) throws Exception {
        Map<String, Object> shown = new TreeMap<>();
        for (Map.Entry<K, ? extends KafkaFuture<?>> one : results.entrySet()) {
            try {
                shown.put(one.getKey().toString(), String.valueOf(one.getValue().get()));
            } catch (ExecutionException failed) {
                if (failed.getCause() instanceof org.apache.kafka.common.errors.TimeoutException) {
                    throw failed;
                }
                shown.put(one.getKey().toString(),
                        failed.getCause().getClass().getSimpleName() + ": "
                                + failed.getCause().getMessage());
            }
        }
        return shown;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers",
            arguments[0], "connections.max.idle.ms", "3600000", "metadata.max.age.ms", "3600000",
            "request.timeout.ms", "60000", "default.api.timeout.ms", "60000");
        TopicPartition first = new TopicPartition("every", 0);
        TopicPartition beyond = new TopicPartition("every", 7);
        TopicPartition never = new TopicPartition("never", 0);
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "every");
        ConfigResource metrics = new ConfigResource(ConfigResource.Type.CLIENT_METRICS, "all");
        AclBinding acl = new AclBinding(
            new ResourcePattern(ResourceType.TOPIC, "every", PatternType.LITERAL),
            new AccessControlEntry("User:a", "*", AclOperation.READ, AclPermissionType.ALLOW));
        ClientQuotaEntity quota = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, "c"));
        ScramCredentialInfo scram = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
        Uuid directory = new Uuid(1, 2);
        byte[] hmac = {1, 2, 3};
        admin = Admin.create(settings);
        try {
            step("createTopics", () ->
                each(admin.createTopics(List.of(new NewTopic("every", 2, (short) 1))).values()));
            while (!admin.listTopics().names().get().contains("every")) {
                Thread.sleep(50);
            }
            closed = closedConnections();

            step("listTopics", () -> admin.listTopics().names().get().contains("every"));
            step("describeTopics", () ->
                admin.describeTopics(List.of("every")).allTopicNames().get().get("every")
                    .partitions().size());
            step("describeCluster", () -> admin.describeCluster().nodes().get().size());
            step("describeFeatures finalized", () ->
                admin.describeFeatures().featureMetadata().get() != null);
            step("createPartitions",
                    ()
                            -> each(admin.createPartitions(
                                                 Map.of("every", NewPartitions.increaseTo(3)))
                                            .values()));
            step("describeConfigs", () ->
                admin.describeConfigs(List.of(topic)).all().get().get(topic).get("cleanup.policy")
                    .value());
            step("describeConfigs metrics", () ->
                admin.describeConfigs(List.of(metrics)).all().get().get(metrics).entries());
            step("incrementalAlterConfigs",
                    ()
                            -> each(admin
                                            .incrementalAlterConfigs(Map.of(topic,
                                                    List.of(new AlterConfigOp(
                                                            new ConfigEntry("retention.ms", "-1"),
                                                            AlterConfigOp.OpType.SET))))
                                            .values()));
            step("deleteRecords", () ->
                admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(-1))).lowWatermarks()
                    .get(first).get().lowWatermark());
            step("listOffsets", () ->
                admin.listOffsets(Map.of(first, OffsetSpec.latest())).all().get().get(first)
                    .offset());

            step("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
            step("createAcls", () -> each(admin.createAcls(List.of(acl)).values()));
            step("deleteAcls", () -> each(admin.deleteAcls(List.of(acl.toFilter())).values()));

            step("electLeaders", () ->
                admin.electLeaders(ElectionType.PREFERRED, Set.of(first, beyond, never))
                    .partitions().get());
            step("electLeaders unclean", () ->
                admin.electLeaders(ElectionType.UNCLEAN, Set.of(first)).partitions().get());
            step("electLeaders all", () ->
                admin.electLeaders(ElectionType.PREFERRED, null).partitions().get());
            step("alterPartitionReassignments", () -> each(admin.alterPartitionReassignments(Map.of(
                first, Optional.<NewPartitionReassignment>empty(), never,
                Optional.<NewPartitionReassignment>empty())).values()));
            step("alterPartitionReassignments same", () -> each(admin.alterPartitionReassignments(
                Map.of(first, Optional.of(new NewPartitionReassignment(List.of(1))))).values()));
            step("alterPartitionReassignments elsewhere", () ->
                each(admin.alterPartitionReassignments(Map.of(
                first, Optional.of(new NewPartitionReassignment(List.of(9))), beyond,
                Optional.of(new NewPartitionReassignment(List.of(1))))).values()));
            step("alterPartitionReassignments twice",
                    ()
                            -> each(admin.alterPartitionReassignments(
                                                 Map.of(first,
                                                         Optional.of(new NewPartitionReassignment(
                                                                 List.of(1, 1))),
                                                         never,
                                                         Optional.of(new NewPartitionReassignment(
                                                                 List.of(1)))))
                                            .values()));
            step("listPartitionReassignments", () ->
                admin.listPartitionReassignments().reassignments().get());
            step("listPartitionReassignments some", () ->
                admin.listPartitionReassignments(Set.of(first)).reassignments().get());
            step("listPartitionReassignments never", () ->
                admin.listPartitionReassignments(Set.of(never, beyond)).reassignments().get());
            step("describeLogDirs", () ->
                admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).size());
            step("alterReplicaLogDirs",
                    ()
                            -> each(admin.alterReplicaLogDirs(
                                                 Map.of(new TopicPartitionReplica("every", 0, 1),
                                                         "/nowhere",
                                                         new TopicPartitionReplica("never", 0, 1),
                                                         "/nowhere"))
                                            .values()));
            step("alterReplicaLogDirs relative",
                    ()
                            -> each(admin.alterReplicaLogDirs(
                                                 Map.of(new TopicPartitionReplica("every", 0, 1),
                                                         "nowhere"))
                                            .values()));
            step("alterReplicaLogDirs same", () -> {
                String here = admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1)
                    .keySet().iterator().next();
                return each(admin.alterReplicaLogDirs(Map.of(
                    new TopicPartitionReplica("every", 0, 1), here,
                    new TopicPartitionReplica("never", 0, 1), here)).values());
            });
            step("describeReplicaLogDirs", () ->
                admin.describeReplicaLogDirs(List.of(new TopicPartitionReplica("every", 0, 1)))
                    .all().get().values()
                .iterator().next().getFutureReplicaLogDir());

            step("createDelegationToken", () ->
                admin.createDelegationToken().delegationToken().get());
            step("renewDelegationToken", () ->
                admin.renewDelegationToken(hmac).expiryTimestamp().get());
            step("expireDelegationToken", () ->
                admin.expireDelegationToken(hmac).expiryTimestamp().get());
            step("describeDelegationToken", () ->
                admin.describeDelegationToken().delegationTokens().get());

            step("describeClientQuotas", () ->
                admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get());
            step("describeClientQuotas wrong",
                    ()
                            -> admin.describeClientQuotas(
                                            ClientQuotaFilter.contains(
                                                    List.of(ClientQuotaFilterComponent.ofEntity(
                                                            "nonsense", "x"))))
                                       .entities()
                                       .get());
            step("alterClientQuotas",
                    ()
                            -> each(admin.alterClientQuotas(
                                                 List.of(new ClientQuotaAlteration(quota,
                                                         List.of(new ClientQuotaAlteration.Op(
                                                                 "consumer_byte_rate", 100.0)))),
                                                 new AlterClientQuotasOptions().validateOnly(true))
                                            .values()));
            step("describeUserScramCredentials", () ->
                admin.describeUserScramCredentials().all().get());
            step("describeUserScramCredentials one", () ->
                admin.describeUserScramCredentials(List.of("unknown")).description("unknown")
                    .get());
            step("alterUserScramCredentials", () -> each(admin.alterUserScramCredentials(
                List.of(new UserScramCredentialDeletion("unknown", ScramMechanism.SCRAM_SHA_256)))
                .values()));

            step("describeFeatures", () ->
                admin.describeFeatures().featureMetadata().get() != null);
            step("updateFeatures", () -> each(admin.updateFeatures(
                Map.of("nonsense",
                new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)),
                new UpdateFeaturesOptions()).values()));
            step("updateFeatures metadata.version", () -> each(admin.updateFeatures(
                Map.of("metadata.version",
                new FeatureUpdate((short) 999, FeatureUpdate.UpgradeType.UPGRADE)),
                new UpdateFeaturesOptions()).values()));
            step("describeMetadataQuorum", () ->
                admin.describeMetadataQuorum().quorumInfo().get().leaderId());
            step("unregisterBroker", () -> admin.unregisterBroker(77).all().get());
            step("unregisterController", () -> admin.unregisterController(77).all().get());
            step("addRaftVoter",
                    ()
                            -> admin.addRaftVoter(77, directory,
                                            Set.of(new RaftVoterEndpoint(
                                                    "CONTROLLER", "127.0.0.1", 1)))
                                       .all()
                                       .get());
            step("removeRaftVoter", () -> admin.removeRaftVoter(77, directory).all().get());

            step("describeProducers", () ->
                admin.describeProducers(List.of(first)).all().get().get(first).activeProducers());
            step("listTransactions", () -> admin.listTransactions().all().get());
            step("listTransactions by state", () -> admin.listTransactions(
                new ListTransactionsOptions().filterStates(List.of(TransactionState.ONGOING))).all()
                .get());
            step("describeTransactions",
                    ()
                            -> each(Map.of("never",
                                    admin.describeTransactions(List.of("never"))
                                            .description("never"))));
            step("abortTransaction", () ->
                admin.abortTransaction(new AbortTransactionSpec(first, 77, (short) 1, 0)).all()
                    .get());
            step("forceTerminateTransaction", () ->
                admin.forceTerminateTransaction("never").result().get());
            step("fenceProducers", () ->
                each(admin.fenceProducers(List.of("never")).fencedProducers()));

            step("listConfigResources", () -> admin.listConfigResources(
                Set.of(ConfigResource.Type.CLIENT_METRICS), new ListConfigResourcesOptions()).all()
                .get());
            // Other tests create topics, too.
            step("listConfigResources all",
                    ()
                            -> new TreeSet<>(
                                    admin.listConfigResources()
                                            .all()
                                            .get()
                                            .stream()
                                            .filter(one
                                                    -> one.type() != ConfigResource.Type.TOPIC
                                                            || one.name().equals("every"))
                                            .map(one -> one.type() + " " + one.name())
                                            .toList()));
            step("listClientMetricsResources", () ->
                admin.listClientMetricsResources().all().get());
            step("clientInstanceId", () -> admin.clientInstanceId(Duration.ofSeconds(5)));

            step("alterConsumerGroupOffsets", () ->
                admin.alterConsumerGroupOffsets("g", Map.of(first, new OffsetAndMetadata(0))).all()
                    .get());
            step("listGroups", () ->
                admin.listGroups().all().get().stream().map(GroupListing::groupId)
                    .anyMatch("g"::equals));
            step("listConsumerGroups", () ->
                admin.listConsumerGroups().all().get().stream().map(ConsumerGroupListing::groupId)
                    .anyMatch("g"::equals));
            step("describeConsumerGroups", () ->
                admin.describeConsumerGroups(List.of("g")).all().get().get("g").groupState());
            step("describeClassicGroups", () ->
                admin.describeClassicGroups(List.of("g")).all().get().get("g").state());
            step("listConsumerGroupOffsets", () ->
                admin.listConsumerGroupOffsets("g").partitionsToOffsetAndMetadata().get().keySet());
            step("removeMembersFromConsumerGroup", () ->
                admin.removeMembersFromConsumerGroup("g",
                    new RemoveMembersFromConsumerGroupOptions()).all().get());
            step("deleteConsumerGroupOffsets", () ->
                admin.deleteConsumerGroupOffsets("g", Set.of(first)).partitionResult(first).get());
            step("alterStreamsGroupOffsets", () ->
                admin.alterStreamsGroupOffsets("s", Map.of(first, new OffsetAndMetadata(0))).all()
                    .get());
            step("listStreamsGroupOffsets", () ->
                admin.listStreamsGroupOffsets(Map.of("s", new ListStreamsGroupOffsetsSpec())).all()
                    .get().get("s").keySet());
            step("describeStreamsGroups", () ->
                each(admin.describeStreamsGroups(List.of("s")).describedGroups()));
            step("deleteStreamsGroupOffsets", () ->
                admin.deleteStreamsGroupOffsets("s", Set.of(first)).partitionResult(first).get());
            step("deleteStreamsGroups", () ->
                each(admin.deleteStreamsGroups(List.of("s")).deletedGroups()));
            step("describeShareGroups", () ->
                each(admin.describeShareGroups(List.of("h")).describedGroups()));
            step("alterShareGroupOffsets", () ->
                admin.alterShareGroupOffsets("h", Map.of(first, 0L)).all().get());
            step("listShareGroupOffsets", () ->
                admin.listShareGroupOffsets(Map.of("h", new ListShareGroupOffsetsSpec())).all()
                    .get());
            step("deleteShareGroupOffsets", () ->
                admin.deleteShareGroupOffsets("h", Set.of("every")).all().get());
            step("deleteShareGroups", () ->
                each(admin.deleteShareGroups(List.of("h")).deletedGroups()));
            step("deleteConsumerGroups", () ->
                each(admin.deleteConsumerGroups(List.of("g")).deletedGroups()));
            step("deleteTopics", () ->
                each(admin.deleteTopics(List.of("every")).topicNameValues()));
        } finally {
            admin.close();
        }
        // These send no requests.
        CALLED.addAll(List.of("close", "metrics", "registerMetricForSubscription",
                "unregisterMetricFromSubscription"));
        for (Method method : Admin.class.getMethods()) {
            if (!Modifier.isStatic(method.getModifiers()) && !CALLED.contains(method.getName())) {
                System.out.println("! " + method.getName() + " is not called");
            }
        }
    }
}
