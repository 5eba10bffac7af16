package peer;

import java.math.BigDecimal;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericArray;
import org.apache.fluss.row.GenericMap;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalArray;
import org.apache.fluss.row.InternalMap;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.row.TimestampLtz;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.JsonNodeFactory;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.fluss.types.ArrayType;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DecimalType;
import org.apache.fluss.types.MapType;
import org.apache.fluss.types.RowType;

/** Rows as JSON and back, in the form that values.py describes. */
final class Values {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
    private static final int NANOS_PER_MILLI = 1_000_000;

    private Values() {}

    /** A row with the named columns of the JSON object, in the row type's order; absent ones are null. */
    static GenericRow toRow(JsonNode json, RowType type) {
        GenericRow row = new GenericRow(type.getFieldCount());
        for (int i = 0; i < type.getFieldCount(); i++) {
            JsonNode value = json.get(type.getFieldNames().get(i));
            row.setField(i, value == null || value.isNull() ? null : toField(value, type.getTypeAt(i)));
        }
        return row;
    }

    static ObjectNode fromRow(InternalRow row, RowType type) {
        ObjectNode json = JSON.objectNode();
        List<String> names = type.getFieldNames();
        for (int i = 0; i < names.size(); i++) {
            DataType fieldType = type.getTypeAt(i);
            Object field = InternalRow.createFieldGetter(fieldType, i).getFieldOrNull(row);
            json.set(names.get(i), field == null ? JSON.nullNode() : fromField(field, fieldType));
        }
        return json;
    }

    private static Object toField(JsonNode value, DataType type) {
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return value.booleanValue();
            case TINYINT:
                return (byte) value.intValue();
            case SMALLINT:
                return value.shortValue();
            case INTEGER:
                return value.intValue();
            case BIGINT:
                return value.longValue();
            case FLOAT:
                return (float) number(value);
            case DOUBLE:
                return number(value);
            case CHAR:
            case STRING:
                return BinaryString.fromString(value.textValue());
            case BINARY:
            case BYTES:
                return HexFormat.of().parseHex(value.get("$bytes").textValue());
            case DECIMAL:
                DecimalType decimal = (DecimalType) type;
                BigDecimal exact = new BigDecimal(value.get("$decimal").textValue());
                return Decimal.fromBigDecimal(exact, decimal.getPrecision(), decimal.getScale());
            case DATE:
                return (int) LocalDate.parse(value.get("$date").textValue()).toEpochDay();
            case TIME_WITHOUT_TIME_ZONE:
                return (int) (LocalTime.parse(value.get("$time").textValue()).toNanoOfDay() / NANOS_PER_MILLI);
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return TimestampNtz.fromLocalDateTime(LocalDateTime.parse(value.get("$timestamp").textValue()));
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return TimestampLtz.fromInstant(Instant.parse(value.get("$timestamp_ltz").textValue()));
            case ARRAY:
                return toArray(value, ((ArrayType) type).getElementType());
            case MAP:
                return toMap(value, (MapType) type);
            case ROW:
                return toRow(value, (RowType) type);
            default:
                throw new IllegalArgumentException("no JSON form for " + type);
        }
    }

    private static GenericArray toArray(JsonNode values, DataType type) {
        Object[] elements = new Object[values.size()];
        for (int i = 0; i < elements.length; i++) {
            elements[i] = values.get(i).isNull() ? null : toField(values.get(i), type);
        }
        return new GenericArray(elements);
    }

    private static GenericMap toMap(JsonNode value, MapType type) {
        Map<Object, Object> entries = new LinkedHashMap<>();
        for (JsonNode pair : value.isArray() ? value : value.get("$map")) {
            JsonNode item = pair.get(1);
            entries.put(
                    toField(pair.get(0), type.getKeyType()),
                    item.isNull() ? null : toField(item, type.getValueType()));
        }
        return new GenericMap(entries);
    }

    private static ArrayNode fromArray(InternalArray array, DataType type) {
        InternalArray.ElementGetter getter = InternalArray.createElementGetter(type);
        ArrayNode json = JSON.arrayNode();
        for (int i = 0; i < array.size(); i++) {
            Object element = getter.getElementOrNull(array, i);
            json.add(element == null ? JSON.nullNode() : fromField(element, type));
        }
        return json;
    }

    private static JsonNode fromMap(InternalMap map, MapType type) {
        ArrayNode keys = fromArray(map.keyArray(), type.getKeyType());
        ArrayNode values = fromArray(map.valueArray(), type.getValueType());
        if (keys.isEmpty()) {
            return keys;
        }
        ObjectNode json = JSON.objectNode();
        ArrayNode pairs = json.putArray("$map");
        for (int i = 0; i < keys.size(); i++) {
            pairs.addArray().add(keys.get(i)).add(values.get(i));
        }
        return json;
    }

    private static JsonNode fromField(Object field, DataType type) {
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return JSON.booleanNode((Boolean) field);
            case TINYINT:
            case SMALLINT:
            case INTEGER:
            case BIGINT:
                return JSON.numberNode(((Number) field).longValue());
            case FLOAT:
            case DOUBLE:
                double number = ((Number) field).doubleValue();
                return Double.isFinite(number) ? JSON.numberNode(number) : tagged("$float", pythonName(number));
            case CHAR:
            case STRING:
                return JSON.textNode(field.toString());
            case BINARY:
            case BYTES:
                return tagged("$bytes", HexFormat.of().formatHex((byte[]) field));
            case DECIMAL:
                return tagged("$decimal", ((Decimal) field).toBigDecimal().toPlainString());
            case DATE:
                return tagged("$date", LocalDate.ofEpochDay((Integer) field).toString());
            case TIME_WITHOUT_TIME_ZONE:
                long nanos = (long) NANOS_PER_MILLI * (Integer) field;
                return tagged("$time", LocalTime.ofNanoOfDay(nanos).toString());
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return tagged("$timestamp", ((TimestampNtz) field).toLocalDateTime().toString());
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return tagged("$timestamp_ltz", ((TimestampLtz) field).toInstant().toString());
            case ARRAY:
                return fromArray((InternalArray) field, ((ArrayType) type).getElementType());
            case MAP:
                return fromMap((InternalMap) field, (MapType) type);
            case ROW:
                return fromRow((InternalRow) field, (RowType) type);
            default:
                throw new IllegalArgumentException("no JSON form for " + type);
        }
    }

    private static double number(JsonNode value) {
        if (!value.isObject()) {
            return value.doubleValue();
        }
        switch (value.get("$float").textValue()) {
            case "inf":
                return Double.POSITIVE_INFINITY;
            case "-inf":
                return Double.NEGATIVE_INFINITY;
            default:
                return Double.NaN;
        }
    }

    private static String pythonName(double number) {
        return Double.isNaN(number) ? "nan" : number > 0 ? "inf" : "-inf";
    }

    private static ObjectNode tagged(String tag, String text) {
        return JSON.objectNode().put(tag, text);
    }
}
