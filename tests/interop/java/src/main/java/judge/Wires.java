package judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.wire.ValueIn;
import net.openhft.chronicle.wire.ValueOut;
import net.openhft.chronicle.wire.Wire;
import net.openhft.chronicle.wire.WireOut;
import net.openhft.chronicle.wire.WireType;

import java.lang.reflect.Method;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZonedDateTime;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;

/** Values as bytes of the queue's wire, without a queue. */
final class Wires {
    private Wires() {
    }

    /** Writes every value with its typed method of the wire. */
    static JsonObject encode(JsonObject request) {
        JsonArray encoded = new JsonArray();
        for (JsonElement each : request.getAsJsonArray("values")) {
            Bytes<?> bytes = Bytes.allocateElasticDirect();
            Wire wire = WireType.BINARY_LIGHT.apply(bytes);
            write(wire.getValueOut(), each);
            encoded.add(Values.hex(bytes.toByteArray()));
            bytes.releaseLast();
        }
        JsonObject reply = new JsonObject();
        reply.add("encoded", encoded);
        return reply;
    }

    static void writeFields(WireOut wire, JsonArray fields) {
        for (JsonElement field : fields) {
            JsonArray pair = field.getAsJsonArray();
            write(wire.write(pair.get(0).getAsString()), pair.get(1));
        }
    }

    private static void write(ValueOut out, JsonElement element) {
        Object value = Values.value(element);
        if (value == null) {
            out.nu11();
            return;
        }
        switch (element.getAsJsonArray().get(0).getAsString()) {
            case "text":
                out.text((String) value);
                break;
            case "flag":
                out.bool((Boolean) value);
                break;
            case "i8":
                out.int8((Byte) value);
                break;
            case "i16":
                out.int16((Short) value);
                break;
            case "i32":
                out.int32((Integer) value);
                break;
            case "i64":
                out.int64((Long) value);
                break;
            case "f32":
                out.float32((Float) value);
                break;
            case "f64":
                out.float64((Double) value);
                break;
            case "bytes":
                out.bytes((byte[]) value);
                break;
            default:
                writeObject(out, value);
        }
    }

    private static void writeObject(ValueOut out, Object value) {
        if (value instanceof LocalDate)
            out.date((LocalDate) value);
        else if (value instanceof LocalTime)
            out.time((LocalTime) value);
        else if (value instanceof LocalDateTime)
            out.dateTime((LocalDateTime) value);
        else if (value instanceof ZonedDateTime)
            out.zonedDateTime((ZonedDateTime) value);
        else if (value instanceof UUID)
            out.uuid((UUID) value);
        else
            out.object(value);
    }

    /** Returns what Java reads, as an object and as the requested type ("i64", "f64", "text" ...). */
    static JsonObject decode(JsonObject request) {
        JsonArray decoded = new JsonArray();
        String as = Session.text(request, "read_as", "object");
        for (JsonElement each : request.getAsJsonArray("encoded")) {
            Bytes<?> bytes = Bytes.allocateElasticDirect();
            bytes.write(Values.bytes(each.getAsString()));
            decoded.add(Values.describe(read(WireType.BINARY_LIGHT.apply(bytes), as)));
            bytes.releaseLast();
        }
        JsonObject reply = new JsonObject();
        reply.add("decoded", decoded);
        return reply;
    }

    private static Object read(Wire wire, String as) {
        ValueIn in = wire.getValueIn();
        switch (as) {
            case "i32":
                return in.int32();
            case "i64":
                return in.int64();
            case "f32":
                return in.float32();
            case "f64":
                return in.float64();
            case "text":
                return in.text();
            case "bytes":
                return in.bytes();
            case "quote":
                Quote quote = new Quote();
                quote.readMarshallable(wire);
                return quote;
            case "fields": // as writeDocument writes them: names and values to the end
                Bytes<?> text = Bytes.allocateElasticOnHeap();
                wire.copyTo(WireType.TEXT.apply(text));
                return text.toString();
            case "carried": // key, headers and payload, as aiochronicle's convert writes them
                return carried(wire);
            default:
                return in.object();
        }
    }

    private static Map<String, Object> carried(Wire wire) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("aiochronicle", wire.read("aiochronicle").int32());
        fields.put("key", wire.read("key").bytes());
        Map<String, byte[]> headers = new LinkedHashMap<>();
        wire.read("headers").sequence(headers, (map, value) -> {
            while (value.hasNextSequenceItem()) {
                String name = value.text();
                map.put(name, value.bytes());
            }
        });
        fields.put("headers", headers);
        fields.put("payload", wire.read("payload").bytes());
        return fields;
    }

    /** Makes the calls of a chain [["to", args], ["say", args]], each on the result of the previous one. */
    static void call(Object writer, JsonArray chain) throws Exception {
        Object target = writer;
        for (JsonElement element : chain) {
            JsonArray call = element.getAsJsonArray();
            JsonArray values = call.get(1).getAsJsonArray();
            Object[] arguments = new Object[values.size()];
            for (int i = 0; i < arguments.length; i++)
                arguments[i] = Values.value(values.get(i));
            target = method(target, call.get(0).getAsString()).invoke(target, arguments);
        }
    }

    private static Method method(Object target, String name) throws NoSuchMethodException {
        for (Class<?> type : target.getClass().getInterfaces())
            for (Method method : type.getMethods())
                if (method.getName().equals(name) && (type == Calls.class || type == Calls.To.class))
                    return method;
        throw new NoSuchMethodException(name);
    }
}
