package peer;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.metadata.LakeSnapshot;
import org.apache.fluss.metadata.AggFunctionType;
import org.apache.fluss.metadata.AggFunctions;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.DatabaseInfo;
import org.apache.fluss.metadata.KvFormat;
import org.apache.fluss.metadata.LogFormat;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.PartitionSpec;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableChange;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DataTypes;
import org.apache.fluss.types.RowType;

/** Descriptors, infos and changes of tables as JSON. */
final class Tables {
    private Tables() {}

    static TableDescriptor descriptor(JsonNode arguments) {
        Schema.Builder schema = Schema.newBuilder();
        JsonNode aggregations = arguments.path("aggregations");
        Commands.strings(arguments.get("columns"))
                .forEach((name, type) -> addColumn(schema, name, DataTypes.parse(type), aggregations.path(name)));
        if (arguments.hasNonNull("primary_keys")) {
            schema.primaryKey(Commands.names(arguments, "primary_keys"));
        }
        if (arguments.hasNonNull("auto_increment")) {
            schema.enableAutoIncrement(Commands.text(arguments, "auto_increment"));
        }
        TableDescriptor.Builder builder = TableDescriptor.builder().schema(schema.build());
        if (arguments.hasNonNull("partition_keys")) {
            builder.partitionedBy(Commands.names(arguments, "partition_keys"));
        }
        if (arguments.hasNonNull("bucket_count")) {
            List<String> keys = Commands.names(arguments, "bucket_keys");
            builder.distributedBy(arguments.get("bucket_count").intValue(), keys == null ? List.of() : keys);
        }
        if (arguments.hasNonNull("log_format")) {
            builder.logFormat(LogFormat.fromString(Commands.text(arguments, "log_format")));
        }
        if (arguments.hasNonNull("kv_format")) {
            builder.kvFormat(KvFormat.fromString(Commands.text(arguments, "kv_format")));
        }
        if (arguments.hasNonNull("comment")) {
            builder.comment(Commands.text(arguments, "comment"));
        }
        builder.properties(Commands.strings(arguments.path("properties")));
        builder.customProperties(Commands.strings(arguments.path("custom_properties")));
        return builder.build();
    }

    /** An aggregation is the name of a function and its parameters. */
    private static void addColumn(Schema.Builder schema, String name, DataType type, JsonNode aggregation) {
        if (aggregation.isMissingNode()) {
            schema.column(name, type);
            return;
        }
        AggFunctionType function = AggFunctionType.fromString(aggregation.get(0).textValue());
        schema.column(name, type, AggFunctions.of(function, Commands.strings(aggregation.get(1))));
    }

    static ObjectNode describe(TableInfo info) {
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

    static DatabaseDescriptor database(JsonNode arguments) {
        DatabaseDescriptor.Builder builder = DatabaseDescriptor.builder();
        if (arguments.hasNonNull("comment")) {
            builder.comment(Commands.text(arguments, "comment"));
        }
        return builder.customProperties(Commands.strings(arguments.path("custom_properties"))).build();
    }

    static ObjectNode describe(DatabaseInfo info) {
        ObjectNode json = Driver.MAPPER.createObjectNode();
        json.put("name", info.getDatabaseName());
        json.put("comment", info.getDatabaseDescriptor().getComment().orElse(null));
        json.set("custom_properties", Driver.MAPPER.valueToTree(info.getDatabaseDescriptor().getCustomProperties()));
        return json;
    }

    /** Offsets are triples of partition id, bucket and offset. */
    static ObjectNode describe(LakeSnapshot snapshot) {
        ObjectNode json = Driver.MAPPER.createObjectNode().put("snapshot_id", snapshot.getSnapshotId());
        ArrayNode offsets = json.putArray("offsets");
        snapshot.getTableBucketsOffset()
                .forEach(
                        (bucket, offset) ->
                                offsets.addArray().add(bucket.getPartitionId()).add(bucket.getBucket()).add(offset));
        return json;
    }

    static List<TableChange> changes(JsonNode arguments) {
        List<TableChange> changes = new ArrayList<>();
        Commands.strings(arguments.path("add_columns"))
                .forEach((name, type) -> changes.add(added(name, type)));
        Commands.strings(arguments.path("set")).forEach((key, value) -> changes.add(TableChange.set(key, value)));
        arguments.path("reset").forEach(key -> changes.add(TableChange.reset(key.textValue())));
        return changes;
    }

    private static TableChange added(String name, String type) {
        return TableChange.addColumn(name, DataTypes.parse(type), null, TableChange.ColumnPosition.last());
    }

    static JsonNode partitions(Admin admin, TablePath path, JsonNode spec) throws Exception {
        List<PartitionInfo> infos =
                spec == null || spec.isNull()
                        ? admin.listPartitionInfos(path).get()
                        : admin.listPartitionInfos(path, new PartitionSpec(Commands.strings(spec))).get();
        Map<String, Long> ids =
                infos.stream()
                        .collect(Collectors.toMap(PartitionInfo::getPartitionName, PartitionInfo::getPartitionId));
        return Driver.MAPPER.valueToTree(ids);
    }
}
