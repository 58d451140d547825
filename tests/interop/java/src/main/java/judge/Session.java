package judge;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import net.openhft.chronicle.queue.ChronicleQueue;

import java.util.HashMap;
import java.util.Map;

/** The open queues and tailers by number, and the requests that are supported. */
final class Session implements AutoCloseable {
    private final Map<Integer, OpenQueue> queues = new HashMap<>();
    private final Map<Integer, Tail> tails = new HashMap<>();
    private int last;

    JsonObject perform(String op, JsonObject request) throws Exception {
        switch (op) {
            case "hello":
                return hello();
            case "roll-cycles":
                return RollCycleTable.print(request);
            case "encode":
                return Wires.encode(request);
            case "decode":
                return Wires.decode(request);
            case "list":
                return Listing.write(request);
            case "open":
                queues.put(++last, new OpenQueue(request));
                return number(last);
            case "tailer":
                tails.put(++last, new Tail(queue(request).queue, request));
                return number(last);
            case "read":
                return tail(request).read(request);
            case "read-calls":
                return tail(request).readCalls(request);
            case "forward":
                return tail(request).forward(queue(request).queue.methodWriter(Calls.class), request);
            case "digest":
                return tail(request).digest(request);
            case "seek":
                return tail(request).seek(request);
            case "close-tailer":
                tails.remove(request.get("tailer").getAsInt()).close();
                return new JsonObject();
            default:
                return queue(request).perform(op, request);
        }
    }

    private OpenQueue queue(JsonObject request) {
        return queues.get(request.get("queue").getAsInt());
    }

    private Tail tail(JsonObject request) {
        return tails.get(request.get("tailer").getAsInt());
    }

    private static JsonObject hello() {
        JsonObject reply = new JsonObject();
        reply.addProperty("pid", ProcessHandle.current().pid());
        reply.addProperty("library",
                ChronicleQueue.class.getProtectionDomain().getCodeSource().getLocation().getPath());
        reply.addProperty("java", System.getProperty("java.version"));
        return reply;
    }

    private static JsonObject number(int number) {
        JsonObject reply = new JsonObject();
        reply.addProperty("number", number);
        return reply;
    }

    /** The field's value, or the default if it is absent or null. */
    static String text(JsonObject request, String name, String otherwise) {
        JsonElement found = request.get(name);
        return found == null || found.isJsonNull() ? otherwise : found.getAsString();
    }

    static long number(JsonObject request, String name, long otherwise) {
        JsonElement found = request.get(name);
        return found == null || found.isJsonNull() ? otherwise : found.getAsLong();
    }

    static boolean flag(JsonObject request, String name) {
        JsonElement found = request.get(name);
        return found != null && !found.isJsonNull() && found.getAsBoolean();
    }

    @Override
    public void close() throws Exception {
        for (Tail tail : tails.values())
            tail.close();
        for (OpenQueue queue : queues.values())
            queue.close();
    }
}
