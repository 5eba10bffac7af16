package peer;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.PartitionSpec;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.LongNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.TextNode;

/** The commands that peer.py describes, on one connection of the Java client. */
final class Commands {
    private final Consumer<ObjectNode> events;
    private final Map<TablePath, Table> tables = new HashMap<>();
    private final Writes writes = new Writes();
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
                admin.createDatabase(text(arguments, "database"), Tables.database(arguments), ignore).get();
                return null;
            case "database_info":
                return Tables.describe(admin.getDatabaseInfo(text(arguments, "database")).get());
            case "drop_database":
                admin.dropDatabase(text(arguments, "database"), false, true).get();
                return null;
            case "list_databases":
                return Driver.MAPPER.valueToTree(admin.listDatabases().get());
            case "create_table":
                admin.createTable(path(arguments), Tables.descriptor(arguments), false).get();
                return null;
            case "drop_table":
                forget(path(arguments));
                admin.dropTable(path(arguments), false).get();
                return null;
            case "list_tables":
                return Driver.MAPPER.valueToTree(admin.listTables(text(arguments, "database")).get());
            case "table_info":
                return Tables.describe(admin.getTableInfo(path(arguments)).get());
            case "alter_table":
                admin.alterTable(path(arguments), Tables.changes(arguments), false).get();
                forget(path(arguments));
                return null;
            case "reopen_table":
                forget(path(arguments));
                return null;
            case "table_stats":
                return LongNode.valueOf(admin.getTableStats(path(arguments)).get().getRowCount());
            case "create_partition":
                PartitionSpec spec = new PartitionSpec(strings(arguments.get("spec")));
                admin.createPartition(path(arguments), spec, false).get();
                return null;
            case "drop_partition":
                admin.dropPartition(path(arguments), new PartitionSpec(strings(arguments.get("spec"))), false).get();
                return null;
            case "list_partitions":
                return Tables.partitions(admin, path(arguments), arguments.get("spec"));
            case "lake_snapshot":
                return Tables.describe(admin.getLatestLakeSnapshot(path(arguments)).get());
            case "register_offsets":
                return TextNode.valueOf(Cluster.register(admin, arguments));
            case "registered_offsets":
                return Cluster.registered(admin, arguments);
            case "delete_offsets":
                admin.deleteProducerOffsets(text(arguments, "producer")).get();
                return null;
            case "tag_servers":
            case "untag_servers":
                Cluster.tag(admin, arguments, command.equals("tag_servers"));
                return null;
            default:
                return runOnData(command, arguments);
        }
    }

    private JsonNode runOnData(String command, JsonNode arguments) throws Exception {
        switch (command) {
            case "append_rows":
                writes.append(table(path(arguments)), arguments);
                return null;
            case "upsert_rows":
                writes.upsert(table(path(arguments)), arguments);
                return null;
            case "delete_rows":
                writes.delete(table(path(arguments)), arguments);
                return null;
            case "flush":
                writes.flush();
                return null;
            case "lookup":
                return Lookups.rows(table(path(arguments)), arguments);
            case "prefix_lookup":
                return Lookups.rowsOfPrefixes(table(path(arguments)), arguments);
            case "read_snapshots":
                return Snapshots.latest(table(path(arguments)), admin, arguments);
            case "lease_snapshots":
                return Snapshots.lease(table(path(arguments)), admin, arguments);
            case "drop_lease":
                Snapshots.dropLease(admin, arguments);
                return null;
            case "scan_records":
                return Scans.toLatest(table(path(arguments)), admin, names(arguments, "columns"));
            case "limit_scan":
                return Scans.lastRows(table(path(arguments)), arguments, names(arguments, "columns"));
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

    private Table table(TablePath path) {
        return tables.computeIfAbsent(path, connection::getTable);
    }

    private void forget(TablePath path) throws Exception {
        writes.forget(path);
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

    static String text(JsonNode arguments, String name) {
        return arguments.get(name).textValue();
    }

    static List<String> names(JsonNode arguments, String name) {
        if (!arguments.hasNonNull(name)) {
            return null;
        }
        List<String> names = new ArrayList<>();
        arguments.get(name).forEach(item -> names.add(item.textValue()));
        return names;
    }

    static Map<String, String> strings(JsonNode object) {
        Map<String, String> result = new LinkedHashMap<>();
        object.fields().forEachRemaining(entry -> result.put(entry.getKey(), entry.getValue().textValue()));
        return result;
    }
}
