package peer;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.admin.ProducerOffsetsResult;
import org.apache.fluss.cluster.rebalance.ServerTag;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;

/** What belongs to no table: offsets that producers register, and tags of servers. */
final class Cluster {
    private Cluster() {}

    /** CREATED or ALREADY_EXISTS. */
    static String register(Admin admin, JsonNode arguments) throws Exception {
        Map<TableBucket, Long> offsets = new HashMap<>();
        for (JsonNode item : arguments.get("offsets")) {
            Long partition = item.get(1).isNull() ? null : item.get(1).longValue();
            offsets.put(new TableBucket(item.get(0).longValue(), partition, item.get(2).intValue()), item.get(3).longValue());
        }
        return admin.registerProducerOffsets(Commands.text(arguments, "producer"), offsets).get().name();
    }

    /** [table id, partition id or null, bucket, offset] of each; null for a producer that has registered nothing. */
    static ArrayNode registered(Admin admin, JsonNode arguments) throws Exception {
        ProducerOffsetsResult found = admin.getProducerOffsets(Commands.text(arguments, "producer")).get();
        if (found == null) {
            return null;
        }
        ArrayNode offsets = Driver.MAPPER.createArrayNode();
        for (Map<TableBucket, Long> table : found.getTableOffsets().values()) {
            table.forEach(
                    (bucket, offset) ->
                            offsets.addArray()
                                    .add(bucket.getTableId())
                                    .add(bucket.getPartitionId())
                                    .add(bucket.getBucket())
                                    .add(offset));
        }
        return offsets;
    }

    static void tag(Admin admin, JsonNode arguments, boolean add) throws Exception {
        List<Integer> servers = new ArrayList<>();
        arguments.get("servers").forEach(server -> servers.add(server.intValue()));
        ServerTag tag = ServerTag.valueOf(Commands.text(arguments, "tag"));
        (add ? admin.addServerTag(servers, tag) : admin.removeServerTag(servers, tag)).get();
    }
}
