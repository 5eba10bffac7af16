package peer;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.client.table.writer.TableWriter;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.PartitionSpec;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.fluss.types.DataTypes;
import org.apache.fluss.types.RowType;

/** The commands that peer.py describes, on one connection of the Java client. */
final class Commands {
    private final Consumer<ObjectNode> events;
    private final Map<TablePath, Table> tables = new HashMap<>();
    private final Map<TablePath, TableWriter> writers = new HashMap<>();
    private final List<CompletableFuture<?>> unacknowledged = new ArrayList<>();
    private final Map<String, Scans.Tail> tails = new HashMap<>();
    private Connection connection;
    private Admin admin;

    Commands(Consumer<ObjectNode> events) {
        this.events = events;
    }

    JsonNode run(String command, JsonNode arguments) throws Exception {
        switch (command) {
            case "connect":
                connection = ConnectionFactory.createConnection(Configuration.fromMap(strings(arguments.get("config"))));
                admin = connection.getAdmin();
                return null;
            case "create_database":
                boolean ignore = arguments.get("ignore_if_exists").booleanValue();
                admin.createDatabase(text(arguments, "database"), DatabaseDescriptor.EMPTY, ignore).get();
                return null;
            case "drop_database":
                admin.dropDatabase(text(arguments, "database"), false, true).get();
                return null;
            case "list_databases":
                return Driver.MAPPER.valueToTree(admin.listDatabases().get());
            case "create_table":
                admin.createTable(path(arguments), descriptor(arguments), false).get();
                return null;
            case "drop_table":
                forget(path(arguments));
                admin.dropTable(path(arguments), false).get();
                return null;
            case "list_tables":
                return Driver.MAPPER.valueToTree(admin.listTables(text(arguments, "database")).get());
            case "table_info":
                return describe(admin.getTableInfo(path(arguments)).get());
            case "create_partition":
                PartitionSpec spec = new PartitionSpec(strings(arguments.get("spec")));
                admin.createPartition(path(arguments), spec, false).get();
                return null;
            case "list_partitions":
                return listPartitions(path(arguments));
            default:
                return runOnData(command, arguments);
        }
    }

    private JsonNode runOnData(String command, JsonNode arguments) throws Exception {
        switch (command) {
            case "append_rows":
                append(arguments);
                return null;
            case "upsert_rows":
                upsert(arguments);
                return null;
            case "delete_rows":
                delete(arguments);
                return null;
            case "lookup":
                return lookup(arguments);
            case "flush":
                flush();
                return null;
            case "scan_records":
                return Scans.toLatest(table(path(arguments)), admin, names(arguments, "columns"));
            case "start_tail":
                String name = text(arguments, "tail");
                boolean fromLatest = text(arguments, "start").equals("latest");
                tails.put(name, new Scans.Tail(name, table(path(arguments)), admin, fromLatest, events));
                return null;
            case "stop_tail":
                tails.remove(text(arguments, "tail")).stop();
                return null;
            case "list_offsets":
                String partition = arguments.path("partition").textValue();
                Table table = table(path(arguments));
                return Driver.MAPPER.valueToTree(Scans.offsets(table, admin, partition, arguments.get("spec")));
            case "close":
                close();
                return null;
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private TableDescriptor descriptor(JsonNode arguments) {
        Schema.Builder schema = Schema.newBuilder();
        arguments.get("columns")
                .fields()
                .forEachRemaining(column -> schema.column(column.getKey(), DataTypes.parse(column.getValue().textValue())));
        if (arguments.hasNonNull("primary_keys")) {
            schema.primaryKey(names(arguments, "primary_keys"));
        }
        TableDescriptor.Builder builder = TableDescriptor.builder().schema(schema.build());
        if (arguments.hasNonNull("partition_keys")) {
            builder.partitionedBy(names(arguments, "partition_keys"));
        }
        if (arguments.hasNonNull("bucket_count")) {
            List<String> keys = names(arguments, "bucket_keys");
            builder.distributedBy(arguments.get("bucket_count").intValue(), keys == null ? List.of() : keys);
        }
        if (arguments.hasNonNull("comment")) {
            builder.comment(text(arguments, "comment"));
        }
        builder.properties(strings(arguments.path("properties")));
        builder.customProperties(strings(arguments.path("custom_properties")));
        return builder.build();
    }

    private static ObjectNode describe(TableInfo info) {
        ObjectNode json = Driver.MAPPER.createObjectNode();
        json.put("table_id", info.getTableId());
        json.put("schema_id", info.getSchemaId());
        json.put("bucket_count", info.getNumBuckets());
        ObjectNode columns = json.putObject("columns");
        RowType type = info.getRowType();
        for (int i = 0; i < type.getFieldCount(); i++) {
            columns.put(type.getFieldNames().get(i), type.getTypeAt(i).asSummaryString());
        }
        json.set("primary_keys", Driver.MAPPER.valueToTree(info.getPrimaryKeys()));
        json.set("bucket_keys", Driver.MAPPER.valueToTree(info.getBucketKeys()));
        json.set("partition_keys", Driver.MAPPER.valueToTree(info.getPartitionKeys()));
        json.put("comment", info.getComment().orElse(null));
        json.set("properties", Driver.MAPPER.valueToTree(info.getProperties().toMap()));
        json.set("custom_properties", Driver.MAPPER.valueToTree(info.getCustomProperties().toMap()));
        return json;
    }

    private JsonNode listPartitions(TablePath path) throws Exception {
        Map<String, Long> ids =
                admin.listPartitionInfos(path).get().stream()
                        .collect(Collectors.toMap(PartitionInfo::getPartitionName, PartitionInfo::getPartitionId));
        return Driver.MAPPER.valueToTree(ids);
    }

    /** The client's own flush does not report failed writes: only their futures do. */
    private void flush() throws Exception {
        writers.values().forEach(TableWriter::flush);
        List<CompletableFuture<?>> results = new ArrayList<>(unacknowledged);
        unacknowledged.clear();
        for (CompletableFuture<?> result : results) {
            result.get();
        }
    }

    private void append(JsonNode arguments) throws Exception {
        Table table = table(path(arguments));
        AppendWriter writer =
                (AppendWriter) writers.computeIfAbsent(path(arguments), unused -> table.newAppend().createWriter());
        for (JsonNode row : arguments.get("rows")) {
            unacknowledged.add(writer.append(Values.toRow(row, table.getTableInfo().getRowType())));
        }
        if (arguments.get("flush").booleanValue()) {
            flush();
        }
    }

    private void upsert(JsonNode arguments) throws Exception {
        Table table = table(path(arguments));
        UpsertWriter writer = upsertWriter(arguments);
        RowType type = table.getTableInfo().getRowType();
        arguments.get("rows").forEach(row -> unacknowledged.add(writer.upsert(Values.toRow(row, type))));
        flush();
    }

    private void delete(JsonNode arguments) throws Exception {
        Table table = table(path(arguments));
        UpsertWriter writer = upsertWriter(arguments);
        RowType type = table.getTableInfo().getRowType();
        arguments.get("rows").forEach(row -> unacknowledged.add(writer.delete(Values.toRow(row, type))));
        flush();
    }

    private JsonNode lookup(JsonNode arguments) throws Exception {
        TableInfo info = table(path(arguments)).getTableInfo();
        RowType keyType = info.getRowType().project(info.getPrimaryKeys());
        Lookuper lookuper = table(path(arguments)).newLookup().createLookuper();
        ArrayNode found = Driver.MAPPER.createArrayNode();
        for (JsonNode key : arguments.get("rows")) {
            GenericRow keyRow = Values.toRow(key, keyType);
            InternalRow row = lookuper.lookup(keyRow).get().getSingletonRow();
            found.add(row == null ? found.nullNode() : Values.fromRow(row, info.getRowType()));
        }
        return found;
    }

    private UpsertWriter upsertWriter(JsonNode arguments) {
        Table table = table(path(arguments));
        return (UpsertWriter) writers.computeIfAbsent(path(arguments), unused -> table.newUpsert().createWriter());
    }

    private Table table(TablePath path) {
        return tables.computeIfAbsent(path, connection::getTable);
    }

    private void forget(TablePath path) throws Exception {
        writers.remove(path);
        Table table = tables.remove(path);
        if (table != null) {
            table.close();
        }
    }

    private void close() throws Exception {
        for (Scans.Tail tail : tails.values()) {
            tail.stop();
        }
        tails.clear();
        for (TablePath path : new ArrayList<>(tables.keySet())) {
            forget(path);
        }
        connection.close();
    }

    private static TablePath path(JsonNode arguments) {
        return TablePath.of(text(arguments, "database"), text(arguments, "table"));
    }

    private static String text(JsonNode arguments, String name) {
        return arguments.get(name).textValue();
    }

    private static List<String> names(JsonNode arguments, String name) {
        if (!arguments.hasNonNull(name)) {
            return null;
        }
        List<String> names = new ArrayList<>();
        arguments.get(name).forEach(item -> names.add(item.textValue()));
        return names;
    }

    private static Map<String, String> strings(JsonNode object) {
        Map<String, String> result = new HashMap<>();
        object.fields().forEachRemaining(entry -> result.put(entry.getKey(), entry.getValue().textValue()));
        return result;
    }
}
