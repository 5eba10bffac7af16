package peer;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.client.table.writer.TableWriter;
import org.apache.fluss.client.table.writer.Upsert;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.rpc.protocol.MergeMode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.types.RowType;

/** Appends, upserts and deletes; each table keeps its writers. */
final class Writes {
    private final Map<TablePath, Map<String, TableWriter>> writers = new HashMap<>();
    private final List<CompletableFuture<?>> unacknowledged = new ArrayList<>();

    void append(Table table, JsonNode arguments) throws Exception {
        AppendWriter writer = (AppendWriter) writer(table, "append", () -> table.newAppend().createWriter());
        write(table, arguments, writer::append);
        if (arguments.get("flush").booleanValue()) {
            flush();
        }
    }

    void upsert(Table table, JsonNode arguments) throws Exception {
        write(table, arguments, upsertWriter(table, arguments)::upsert);
        flush();
    }

    void delete(Table table, JsonNode arguments) throws Exception {
        write(table, arguments, upsertWriter(table, arguments)::delete);
        flush();
    }

    /** The client's own flush does not report failed writes: only their futures do. */
    void flush() throws Exception {
        writers.values().forEach(found -> found.values().forEach(TableWriter::flush));
        List<CompletableFuture<?>> results = new ArrayList<>(unacknowledged);
        unacknowledged.clear();
        for (CompletableFuture<?> result : results) {
            result.get();
        }
    }

    void forget(TablePath path) {
        writers.remove(path);
    }

    private void write(Table table, JsonNode arguments, Function<GenericRow, CompletableFuture<?>> write) {
        RowType type = table.getTableInfo().getRowType();
        arguments.get("rows").forEach(row -> unacknowledged.add(write.apply(Values.toRow(row, type))));
    }

    /** Of all columns or of those that are named; in aggregating tables also one that sets instead of aggregating. */
    private UpsertWriter upsertWriter(Table table, JsonNode arguments) {
        List<String> columns = Commands.names(arguments, "columns");
        boolean overwrites = arguments.path("overwrite").booleanValue();
        Supplier<TableWriter> make =
                () -> {
                    Upsert upsert = table.newUpsert();
                    upsert = columns == null ? upsert : upsert.partialUpdate(columns.toArray(new String[0]));
                    return (overwrites ? upsert.mergeMode(MergeMode.OVERWRITE) : upsert).createWriter();
                };
        return (UpsertWriter) writer(table, "upsert " + overwrites + columns, make);
    }

    private TableWriter writer(Table table, String kind, Supplier<TableWriter> make) {
        TablePath path = table.getTableInfo().getTablePath();
        return writers.computeIfAbsent(path, unused -> new HashMap<>()).computeIfAbsent(kind, unused -> make.get());
    }
}
