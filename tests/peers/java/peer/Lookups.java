package peer;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.fluss.client.lookup.Lookup;
import org.apache.fluss.client.lookup.LookupResult;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.fluss.types.RowType;

/** Rows by their key, or by the columns it begins with. */
final class Lookups {
    private Lookups() {}

    /** The row of each key or null. */
    static ArrayNode rows(Table table, JsonNode arguments) throws Exception {
        TableInfo info = table.getTableInfo();
        RowType keyType = info.getRowType().project(info.getPrimaryKeys());
        Lookup lookup = table.newLookup();
        boolean inserts = arguments.path("insert_if_not_exists").booleanValue();
        Lookuper lookuper = (inserts ? lookup.enableInsertIfNotExists() : lookup).createLookuper();
        ArrayNode found = Driver.MAPPER.createArrayNode();
        for (CompletableFuture<LookupResult> result : start(lookuper, arguments, keyType)) {
            InternalRow row = result.get().getSingletonRow();
            found.add(row == null ? found.nullNode() : Values.fromRow(row, info.getRowType()));
        }
        return found;
    }

    /** All rows of each prefix. */
    static ArrayNode rowsOfPrefixes(Table table, JsonNode arguments) throws Exception {
        RowType rowType = table.getTableInfo().getRowType();
        List<String> columns = Commands.names(arguments, "columns");
        RowType prefixType = rowType.project(columns);
        Lookuper lookuper = table.newLookup().lookupBy(columns).createLookuper();
        ArrayNode found = Driver.MAPPER.createArrayNode();
        for (CompletableFuture<LookupResult> result : start(lookuper, arguments, prefixType)) {
            ArrayNode rows = found.addArray();
            result.get().getRowList().forEach(row -> rows.add(Values.fromRow(row, rowType)));
        }
        return found;
    }

    /** All at once: the client holds each back for a while to send it with others. */
    private static List<CompletableFuture<LookupResult>> start(Lookuper lookuper, JsonNode arguments, RowType type) {
        List<CompletableFuture<LookupResult>> results = new ArrayList<>();
        arguments.get("rows").forEach(row -> results.add(lookuper.lookup(Values.toRow(row, type))));
        return results;
    }
}
