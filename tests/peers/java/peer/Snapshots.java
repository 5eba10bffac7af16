package peer;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.admin.KvSnapshotLease;
import org.apache.fluss.client.metadata.KvSnapshots;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.Scan;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.fluss.types.RowType;
import org.apache.fluss.utils.CloseableIterator;

/** Snapshots of primary-key tables: the rows of a bucket as of an offset of its changelog. */
final class Snapshots {
    private static final Duration POLL = Duration.ofSeconds(5);

    private Snapshots() {}

    /** The latest snapshot of each bucket of a table or partition, with its rows; buckets without one are left out. */
    static ArrayNode latest(Table table, Admin admin, JsonNode arguments) throws Exception {
        List<String> columns = Commands.names(arguments, "columns");
        RowType rowType = table.getTableInfo().getRowType();
        RowType type = columns == null ? rowType : rowType.project(columns);
        Scan scan = columns == null ? table.newScan() : table.newScan().project(columns);
        ArrayNode found = Driver.MAPPER.createArrayNode();
        KvSnapshots snapshots = snapshots(table.getTableInfo(), admin, arguments);
        for (TableBucket bucket : snapshots.getTableBuckets()) {
            OptionalLong id = snapshots.getSnapshotId(bucket.getBucket());
            if (id.isPresent()) {
                ObjectNode snapshot = found.addObject().put("bucket", bucket.getBucket());
                snapshot.put("snapshot_id", id.getAsLong());
                snapshot.put("log_offset", snapshots.getLogOffset(bucket.getBucket()).getAsLong());
                read(scan.createBatchScanner(bucket, id.getAsLong()), type, snapshot.putArray("rows"));
            }
        }
        return found;
    }

    /** Holds the latest snapshots of a table or partition; returns the buckets whose snapshot can't be held. */
    static ArrayNode lease(Table table, Admin admin, JsonNode arguments) throws Exception {
        KvSnapshots snapshots = snapshots(table.getTableInfo(), admin, arguments);
        Map<TableBucket, Long> wanted = new HashMap<>();
        for (TableBucket bucket : snapshots.getTableBuckets()) {
            snapshots.getSnapshotId(bucket.getBucket()).ifPresent(id -> wanted.put(bucket, id));
        }
        ArrayNode missing = Driver.MAPPER.createArrayNode();
        lease(admin, arguments)
                .acquireSnapshots(wanted)
                .get()
                .getUnavailableTableBucketSet()
                .forEach(bucket -> missing.add(bucket.getBucket()));
        return missing;
    }

    static void dropLease(Admin admin, JsonNode arguments) throws Exception {
        lease(admin, arguments).dropLease().get();
    }

    private static KvSnapshotLease lease(Admin admin, JsonNode arguments) {
        long durationMs = arguments.path("duration_ms").asLong(60_000);
        return admin.createKvSnapshotLease(Commands.text(arguments, "lease"), durationMs);
    }

    private static KvSnapshots snapshots(TableInfo info, Admin admin, JsonNode arguments) throws Exception {
        return arguments.hasNonNull("partition")
                ? admin.getLatestKvSnapshots(info.getTablePath(), Commands.text(arguments, "partition")).get()
                : admin.getLatestKvSnapshots(info.getTablePath()).get();
    }

    /** An empty answer means that files are still being fetched; null is the end. */
    private static void read(BatchScanner scanner, RowType type, ArrayNode found) throws Exception {
        try (scanner) {
            CloseableIterator<InternalRow> rows;
            while ((rows = scanner.pollBatch(POLL)) != null) {
                rows.forEachRemaining(row -> found.add(Values.fromRow(row, type)));
                rows.close();
            }
        }
    }
}
