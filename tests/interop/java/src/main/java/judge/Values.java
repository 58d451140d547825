package judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import net.openhft.chronicle.bytes.BytesStore;

import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZonedDateTime;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** Converts JSON ["kind", value] to Java objects and back; fractional numbers are sent as text to stay exact. */
final class Values {
    private Values() {
    }

    static Object value(JsonElement element) {
        if (element.isJsonNull())
            return null;
        JsonArray pair = element.getAsJsonArray();
        JsonElement value = pair.get(1);
        switch (pair.get(0).getAsString()) {
            case "text":
                return value.getAsString();
            case "flag":
                return value.getAsBoolean();
            case "character":
                return value.getAsString().charAt(0);
            case "i8":
                return value.getAsByte();
            case "i16":
                return value.getAsShort();
            case "i32":
                return value.getAsInt();
            case "i64":
                return value.getAsLong();
            case "f32":
                return Float.parseFloat(value.getAsString());
            case "f64":
                return Double.parseDouble(value.getAsString());
            default:
                return object(pair.get(0).getAsString(), value);
        }
    }

    private static Object object(String kind, JsonElement value) {
        switch (kind) {
            case "bytes":
                return bytes(value.getAsString());
            case "store":
                return BytesStore.wrap(bytes(value.getAsString()));
            case "date":
                return LocalDate.parse(value.getAsString());
            case "time":
                return LocalTime.parse(value.getAsString());
            case "dateTime":
                return LocalDateTime.parse(value.getAsString());
            case "zoned":
                return ZonedDateTime.parse(value.getAsString());
            case "uuid":
                return UUID.fromString(value.getAsString());
            case "side":
                return Side.valueOf(value.getAsString());
            case "list":
                return list(value.getAsJsonArray());
            case "map":
                return map(value.getAsJsonArray());
            case "quote":
                return quote(value.getAsJsonObject());
            default:
                throw new IllegalArgumentException("no kind of value " + kind);
        }
    }

    private static List<Object> list(JsonArray values) {
        List<Object> list = new ArrayList<>();
        for (JsonElement element : values)
            list.add(value(element));
        return list;
    }

    /** Keys are texts or any other values. */
    private static Map<Object, Object> map(JsonArray pairs) {
        Map<Object, Object> map = new LinkedHashMap<>();
        for (JsonElement element : pairs) {
            JsonArray pair = element.getAsJsonArray();
            Object key = pair.get(0).isJsonArray() ? value(pair.get(0)) : pair.get(0).getAsString();
            map.put(key, value(pair.get(1)));
        }
        return map;
    }

    static Quote quote(JsonObject fields) {
        Quote quote = new Quote();
        quote.symbol = Session.text(fields, "symbol", null);
        quote.id = Session.number(fields, "id", 0);
        quote.price = Double.parseDouble(Session.text(fields, "price", "0"));
        quote.quantity = (int) Session.number(fields, "quantity", 0);
        quote.live = Session.flag(fields, "live");
        String side = Session.text(fields, "side", null);
        quote.side = side == null ? null : Side.valueOf(side);
        String day = Session.text(fields, "day", null);
        quote.day = day == null ? null : LocalDate.parse(day);
        if (fields.has("venues"))
            for (JsonElement venue : fields.getAsJsonArray("venues"))
                quote.venues.add(venue.getAsString());
        if (fields.has("levels"))
            for (Map.Entry<String, JsonElement> level : fields.getAsJsonObject("levels").entrySet())
                quote.levels.put(level.getKey(), Double.parseDouble(level.getValue().getAsString()));
        if (fields.has("leg") && !fields.get("leg").isJsonNull()) {
            quote.leg = new Quote.Leg();
            quote.leg.name = Session.text(fields.getAsJsonObject("leg"), "name", null);
            quote.leg.ratio = Float.parseFloat(Session.text(fields.getAsJsonObject("leg"), "ratio", "0"));
        }
        return quote;
    }

    /** Returns the class and text of an object; for collections, those of the elements. */
    static JsonElement describe(Object object) {
        if (object == null)
            return JsonNull.INSTANCE;
        JsonArray described = new JsonArray();
        described.add(object.getClass().getSimpleName());
        if (object instanceof byte[])
            described.add(hex((byte[]) object));
        else if (object instanceof BytesStore)
            described.add(hex(((BytesStore<?, ?>) object).toByteArray()));
        else if (object instanceof List)
            described.add(describeAll((List<?>) object));
        else if (object instanceof Map)
            described.add(describeMap((Map<?, ?>) object));
        else if (object instanceof Float || object instanceof Double)
            described.add(object.toString());
        else if (object instanceof Number)
            described.add(new JsonPrimitive((Number) object));
        else if (object instanceof Boolean)
            described.add((Boolean) object);
        else
            described.add(object.toString());
        return described;
    }

    private static JsonArray describeAll(List<?> list) {
        JsonArray all = new JsonArray();
        for (Object element : list)
            all.add(describe(element));
        return all;
    }

    private static JsonArray describeMap(Map<?, ?> map) {
        JsonArray all = new JsonArray();
        for (Map.Entry<?, ?> entry : map.entrySet()) {
            JsonArray pair = new JsonArray();
            pair.add(String.valueOf(entry.getKey()));
            pair.add(describe(entry.getValue()));
            all.add(pair);
        }
        return all;
    }

    static byte[] bytes(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++)
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        return bytes;
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder(2 * bytes.length);
        for (byte each : bytes)
            text.append(Character.forDigit(each >> 4 & 15, 16)).append(Character.forDigit(each & 15, 16));
        return text.toString();
    }
}
