package judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueue;
import net.openhft.chronicle.wire.DocumentContext;

/** Measures nanoseconds per message in a number of rounds; benchmarks/java.py is the other side. */
final class Bench {
    private Bench() {
    }

    /** Reads the whole queue and one number of each payload. */
    static JsonObject tail(SingleChronicleQueue queue, JsonObject request) {
        JsonArray rounds = new JsonArray();
        long sum = 0;
        try (ExcerptTailer tailer = queue.createTailer()) {
            for (long left = Session.number(request, "rounds", 1); left > 0; left--) {
                tailer.toStart();
                long messages = 0;
                long start = System.nanoTime();
                while (true) {
                    try (DocumentContext document = tailer.readingDocument()) {
                        if (!document.isPresent())
                            break;
                        Bytes<?> bytes = document.wire().bytes();
                        sum += bytes.readLong(bytes.readPosition());
                        messages++;
                    }
                }
                rounds.add((double) (System.nanoTime() - start) / messages);
            }
        }
        return reply(rounds, sum);
    }

    static JsonObject append(SingleChronicleQueue queue, JsonObject request) {
        JsonArray rounds = new JsonArray();
        long count = request.get("count").getAsLong();
        boolean durable = request.get("durable").getAsBoolean();
        Bytes<?> payload = Bytes.allocateDirect(Values.bytes(request.get("hex").getAsString()));
        long length = payload.readRemaining();
        try (ExcerptAppender appender = queue.createAppender()) {
            for (long left = Session.number(request, "rounds", 1); left > 0; left--) {
                long start = System.nanoTime();
                for (long i = 0; i < count; i++) {
                    payload.readPositionRemaining(0, length);
                    appender.writeBytes(payload);
                    if (durable)
                        appender.sync();
                }
                rounds.add((double) (System.nanoTime() - start) / count);
            }
        }
        payload.releaseLast();
        return reply(rounds, 0);
    }

    private static JsonObject reply(JsonArray rounds, long sum) {
        JsonObject reply = new JsonObject();
        reply.add("ns", rounds);
        reply.addProperty("sum", sum);
        return reply;
    }
}
