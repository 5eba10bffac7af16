package peer;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.Scan;
import org.apache.fluss.client.table.scanner.ScanRecord;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.client.table.scanner.log.ScanRecords;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.TextNode;
import org.apache.fluss.types.RowType;
import org.apache.fluss.utils.CloseableIterator;

/** Log scans: all that is there now, or a tail that goes on. */
final class Scans {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final JsonNode EARLIEST = TextNode.valueOf("earliest");
    private static final JsonNode LATEST = TextNode.valueOf("latest");

    private Scans() {}

    /** All records from the earliest offset to the latest one at the time of the call. */
    static ArrayNode toLatest(Table table, Admin admin, List<String> columns) throws Exception {
        RowType rowType = table.getTableInfo().getRowType();
        Scan scan = columns == null ? table.newScan() : table.newScan().project(columns);
        RowType type = columns == null ? rowType : rowType.project(columns);
        Map<TableBucket, Long> ends = allOffsets(table, admin, LATEST);
        Map<TableBucket, Long> missing = new HashMap<>(ends);
        Map<TableBucket, Long> starts = allOffsets(table, admin, EARLIEST);
        missing.entrySet().removeIf(end -> end.getValue() <= starts.get(end.getKey()));
        ArrayNode found = Driver.MAPPER.createArrayNode();
        try (LogScanner scanner = scan.createLogScanner()) {
            missing.keySet().forEach(bucket -> subscribe(scanner, bucket, LogScanner.EARLIEST_OFFSET));
            while (!missing.isEmpty() && !Thread.currentThread().isInterrupted()) {
                ScanRecords records = scanner.poll(POLL);
                for (TableBucket bucket : records.buckets()) {
                    for (ScanRecord record : records.records(bucket)) {
                        if (record.logOffset() < ends.get(bucket)) {
                            found.add(describe(bucket, record, type));
                        }
                        if (record.logOffset() >= ends.get(bucket) - 1) {
                            missing.remove(bucket);
                        }
                    }
                }
            }
        }
        return found;
    }

    /** The last rows of one bucket. */
    static ArrayNode lastRows(Table table, JsonNode arguments, List<String> columns) throws Exception {
        TableInfo info = table.getTableInfo();
        int bucket = arguments.get("bucket").intValue();
        TableBucket place =
                arguments.hasNonNull("partition_id")
                        ? new TableBucket(info.getTableId(), arguments.get("partition_id").longValue(), bucket)
                        : new TableBucket(info.getTableId(), bucket);
        Scan scan = table.newScan().limit(arguments.get("limit").intValue());
        RowType type = columns == null ? info.getRowType() : info.getRowType().project(columns);
        ArrayNode found = Driver.MAPPER.createArrayNode();
        try (BatchScanner scanner = (columns == null ? scan : scan.project(columns)).createBatchScanner(place)) {
            for (CloseableIterator<InternalRow> rows = next(scanner); rows != null; rows = next(scanner)) {
                rows.forEachRemaining(row -> found.add(Values.fromRow(row, type)));
                rows.close();
            }
        }
        return found;
    }

    private static CloseableIterator<InternalRow> next(BatchScanner scanner) throws Exception {
        return scanner.pollBatch(POLL);
    }

    /** Offsets by bucket of a table, or of one partition of it. */
    static Map<Integer, Long> offsets(Table table, Admin admin, String partition, JsonNode spec) throws Exception {
        OffsetSpec wanted =
                spec.isNumber()
                        ? new OffsetSpec.TimestampSpec(spec.longValue())
                        : spec.equals(EARLIEST) ? new OffsetSpec.EarliestSpec() : new OffsetSpec.LatestSpec();
        TableInfo info = table.getTableInfo();
        List<Integer> buckets = IntStream.range(0, info.getNumBuckets()).boxed().toList();
        TablePath path = info.getTablePath();
        return partition == null
                ? admin.listOffsets(path, buckets, wanted).all().get()
                : admin.listOffsets(path, partition, buckets, wanted).all().get();
    }

    private static Map<TableBucket, Long> allOffsets(Table table, Admin admin, JsonNode spec) throws Exception {
        TableInfo info = table.getTableInfo();
        Map<TableBucket, Long> result = new HashMap<>();
        if (!info.isPartitioned()) {
            offsets(table, admin, null, spec)
                    .forEach((bucket, offset) -> result.put(new TableBucket(info.getTableId(), bucket), offset));
            return result;
        }
        for (PartitionInfo partition : admin.listPartitionInfos(info.getTablePath()).get()) {
            long id = partition.getPartitionId();
            offsets(table, admin, partition.getPartitionName(), spec)
                    .forEach((bucket, offset) -> result.put(new TableBucket(info.getTableId(), id, bucket), offset));
        }
        return result;
    }

    private static void subscribe(LogScanner scanner, TableBucket bucket, long offset) {
        if (bucket.getPartitionId() == null) {
            scanner.subscribe(bucket.getBucket(), offset);
        } else {
            scanner.subscribe(bucket.getPartitionId(), bucket.getBucket(), offset);
        }
    }

    private static ObjectNode describe(TableBucket bucket, ScanRecord record, RowType type) {
        ObjectNode json = Driver.MAPPER.createObjectNode();
        json.put("bucket", bucket.getBucket());
        json.put("partition", bucket.getPartitionId());
        json.put("offset", record.logOffset());
        json.put("timestamp", record.timestamp());
        json.put("change", record.getChangeType().shortString());
        json.set("row", Values.fromRow(record.getRow(), type));
        return json;
    }

    /** A scanner with a thread of its own that reports records as they come. */
    static final class Tail {
        private final Thread thread;
        private final LogScanner scanner;
        private volatile boolean stopped;

        Tail(String name, Table table, Admin admin, boolean fromLatest, Consumer<ObjectNode> events)
                throws Exception {
            scanner = table.newScan().createLogScanner();
            allOffsets(table, admin, fromLatest ? LATEST : EARLIEST)
                    .forEach((bucket, offset) -> subscribe(scanner, bucket, offset));
            RowType type = table.getTableInfo().getRowType();
            thread = new Thread(() -> follow(name, type, events), name);
            thread.setDaemon(true);
            thread.start();
        }

        void stop() throws Exception {
            stopped = true;
            thread.join();
            scanner.close();
        }

        private void follow(String name, RowType type, Consumer<ObjectNode> events) {
            while (!stopped) {
                ScanRecords records = scanner.poll(POLL);
                List<ObjectNode> items = new ArrayList<>();
                for (TableBucket bucket : records.buckets()) {
                    records.records(bucket).forEach(record -> items.add(describe(bucket, record, type)));
                }
                if (!items.isEmpty()) {
                    ObjectNode event = Driver.MAPPER.createObjectNode().put("event", name);
                    event.putArray("items").addAll(items);
                    events.accept(event);
                }
            }
        }
    }
}
