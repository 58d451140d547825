package judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.wire.DocumentContext;

/** Appends messages of every kind with one appender. */
final class Append {
    private final ExcerptAppender appender;

    Append(ExcerptAppender appender) {
        this.appender = appender;
    }

    JsonObject all(JsonArray messages) throws Exception {
        JsonArray indexes = new JsonArray();
        for (JsonElement message : messages) {
            String kind = message.getAsJsonObject().get("kind").getAsString();
            one(kind, message.getAsJsonObject());
            if (kind.equals("calls")) // a method writer has its own appender
                indexes.add(appender.queue().lastIndex());
            else if (!kind.equals("metadata") && !kind.equals("rollback"))
                indexes.add(appender.lastIndexAppended());
        }
        JsonObject reply = new JsonObject();
        reply.add("indexes", indexes);
        return reply;
    }

    private void one(String kind, JsonObject message) throws Exception {
        switch (kind) {
            case "text":
                appender.writeText(message.get("text").getAsString());
                break;
            case "bytes":
                appender.writeBytes(Bytes.wrapForRead(Values.bytes(message.get("hex").getAsString())));
                break;
            case "fill":
                appender.writeBytes(Bytes.wrapForRead(
                        pattern(message.get("length").getAsInt(), message.get("seed").getAsInt())));
                break;
            case "fields":
                appender.writeDocument(wire -> Wires.writeFields(wire, message.getAsJsonArray("fields")));
                break;
            case "dto":
                appender.writeDocument(Values.quote(message.getAsJsonObject("quote")));
                break;
            case "calls":
                Wires.call(appender.methodWriter(Calls.class), message.getAsJsonArray("calls"));
                break;
            case "empty":
                try (DocumentContext document = appender.writingDocument()) {
                    document.wire(); // nothing is written
                }
                break;
            case "metadata":
                try (DocumentContext document = appender.writingDocument(true)) {
                    document.wire().bytes().write(Values.bytes(message.get("hex").getAsString()));
                }
                break;
            case "rollback":
                try (DocumentContext document = appender.writingDocument()) {
                    document.wire().bytes().write(Values.bytes(message.get("hex").getAsString()));
                    document.rollbackOnClose();
                }
                break;
            default:
                throw new IllegalArgumentException("no kind of message " + kind);
        }
    }

    /** Byte i is (seed * 31 + i) mod 251: a payload that need not be sent and whose parts differ. */
    static byte[] pattern(int length, int seed) {
        byte[] bytes = new byte[length];
        int start = Math.floorMod(seed * 31L, 251);
        for (int i = 0; i < length; i++)
            bytes[i] = (byte) ((start + i) % 251);
        return bytes;
    }
}
