package judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.bytes.MethodReader;
import net.openhft.chronicle.queue.ChronicleQueue;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.TailerDirection;
import net.openhft.chronicle.wire.DocumentContext;

import java.security.MessageDigest;
import java.util.concurrent.TimeUnit;

/** A tailer, named or not. */
final class Tail implements AutoCloseable {
    private static final int LONGEST_HEX = 4096;
    private final ChronicleQueue queue;
    private final ExcerptTailer tailer;

    Tail(ChronicleQueue queue, JsonObject request) {
        this.queue = queue;
        String name = Session.text(request, "name", null);
        tailer = name == null ? queue.createTailer() : queue.createTailer(name);
        if (Session.flag(request, "backward"))
            tailer.direction(TailerDirection.BACKWARD);
        String from = Session.text(request, "start", "");
        if (from.equals("start"))
            tailer.toStart();
        else if (from.equals("end"))
            tailer.toEnd();
        else if (!from.isEmpty() && !tailer.moveToIndex(Long.parseLong(from)))
            throw new IllegalArgumentException("moveToIndex(" + from + ") is false");
    }

    /** Reads up to the limit; stops early when nothing arrives within the requested time. */
    JsonObject read(JsonObject request) throws Exception {
        long limit = Session.number(request, "limit", Long.MAX_VALUE);
        long patience = TimeUnit.MILLISECONDS.toNanos(Session.number(request, "wait_ms", 0));
        boolean metadata = Session.flag(request, "metadata");
        JsonArray messages = new JsonArray();
        long since = System.nanoTime();
        while (messages.size() < limit) {
            try (DocumentContext document = tailer.readingDocument(metadata)) {
                if (document.isPresent()) {
                    messages.add(describe(document));
                    since = System.nanoTime();
                    continue;
                }
            }
            if (System.nanoTime() - since >= patience)
                break;
            Thread.sleep(1);
        }
        JsonObject reply = new JsonObject();
        reply.add("messages", messages);
        reply.addProperty("index", tailer.index());
        return reply;
    }

    private static JsonObject describe(DocumentContext document) throws Exception {
        Bytes<?> bytes = document.wire().bytes();
        byte[] payload = new byte[(int) bytes.readRemaining()];
        bytes.read(payload);
        JsonObject message = new JsonObject();
        message.addProperty("index", document.index());
        message.addProperty("length", payload.length);
        message.addProperty("metadata", document.isMetaData());
        if (payload.length <= LONGEST_HEX)
            message.addProperty("hex", Values.hex(payload));
        message.addProperty("sha256", Values.hex(MessageDigest.getInstance("SHA-256").digest(payload)));
        return message;
    }

    JsonObject digest(JsonObject request) throws Exception {
        return Digest.follow(queue, tailer, request);
    }

    /** Returns the calls that Java's own method reader makes of the next messages. */
    JsonObject readCalls(JsonObject request) {
        Recorder recorder = new Recorder();
        long limit = Session.number(request, "limit", Long.MAX_VALUE);
        long read = 0;
        try (MethodReader reader = tailer.methodReader(recorder)) {
            while (read < limit && readOne(reader, recorder))
                read++;
        }
        JsonObject reply = new JsonObject();
        reply.addProperty("read", read);
        reply.add("calls", recorder.recorded);
        return reply;
    }

    /** Lets Java's reader call Java's writer of another queue, which adds the history of each message. */
    JsonObject forward(Calls writer, JsonObject request) {
        long limit = Session.number(request, "limit", Long.MAX_VALUE);
        long read = 0;
        try (MethodReader reader = tailer.methodReader(writer)) {
            while (read < limit && reader.readOne())
                read++;
        }
        JsonObject reply = new JsonObject();
        reply.addProperty("read", read);
        return reply;
    }

    /** Records an exception of one message and continues after it. */
    private static boolean readOne(MethodReader reader, Recorder recorder) {
        try {
            return reader.readOne();
        } catch (RuntimeException thrown) {
            recorder.thrown(thrown);
            return true;
        }
    }

    JsonObject seek(JsonObject request) {
        JsonArray found = new JsonArray();
        for (JsonElement index : request.getAsJsonArray("indexes"))
            found.add(tailer.moveToIndex(index.getAsLong()));
        JsonObject reply = new JsonObject();
        reply.add("found", found);
        reply.addProperty("index", tailer.index());
        return reply;
    }

    @Override
    public void close() {
        tailer.close();
    }
}
