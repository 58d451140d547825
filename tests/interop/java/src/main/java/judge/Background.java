package judge;

import com.google.gson.JsonObject;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueue;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/** A thread that appends "prefix:number" until it has written the count or is stopped. */
final class Background {
    private final Thread thread;
    private volatile boolean stopping;
    private volatile long written;
    private volatile long lastIndex = -1;
    private volatile Throwable thrown;

    Background(SingleChronicleQueue queue, JsonObject request) {
        String prefix = Session.text(request, "prefix", "j");
        long count = Session.number(request, "count", Long.MAX_VALUE);
        long rate = Session.number(request, "rate_hz", 0);
        thread = new Thread(() -> run(queue, prefix, count, rate), "append");
        thread.start();
    }

    private void run(SingleChronicleQueue queue, String prefix, long count, long rate) {
        long started = System.nanoTime();
        try (ExcerptAppender appender = queue.createAppender()) {
            while (!stopping && written < count) {
                byte[] payload = (prefix + ":" + written).getBytes(StandardCharsets.UTF_8);
                appender.writeBytes(Bytes.wrapForRead(payload));
                lastIndex = appender.lastIndexAppended();
                written++;
                if (rate > 0)
                    waitUntil(started + written * TimeUnit.SECONDS.toNanos(1) / rate);
            }
        } catch (Throwable error) { // told to whoever stops it
            thrown = error;
        }
    }

    private void waitUntil(long due) {
        long left;
        while (!stopping && (left = due - System.nanoTime()) > 0)
            LockSupport.parkNanos(left);
    }

    JsonObject stop(boolean letFinish) throws Exception {
        stopping = !letFinish;
        thread.join();
        JsonObject reply = new JsonObject();
        reply.addProperty("written", written);
        reply.addProperty("last_index", lastIndex);
        reply.addProperty("thrown", thrown == null ? null : thrown.toString());
        return reply;
    }
}
