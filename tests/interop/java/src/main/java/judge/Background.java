package judge;

import com.google.gson.JsonObject;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueue;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/** A thread that appends "prefix:number", or calls text("prefix:number"), up to the count or until it is stopped. */
final class Background {
    private final Thread thread;
    private volatile boolean stopping;
    private volatile long written;
    private volatile long lastIndex = -1;
    private volatile Throwable thrown;
    private final MappedByteBuffer ledger;
    private final MappedByteBuffer stamps; // System.nanoTime() after the append of each message

    Background(SingleChronicleQueue queue, JsonObject request) throws IOException {
        ledger = map(Session.text(request, "ledger", null), 1);
        String prefix = Session.text(request, "prefix", "j");
        long count = Session.number(request, "count", Long.MAX_VALUE);
        long rate = Session.number(request, "rate_hz", 0);
        boolean calls = Session.flag(request, "calls");
        stamps = map(Session.text(request, "stamps", null), count);
        thread = new Thread(() -> run(queue, prefix, count, rate, calls), "append");
        thread.start();
    }

    private void run(SingleChronicleQueue queue, String prefix, long count, long rate, boolean calls) {
        long due = System.nanoTime();
        try (ExcerptAppender appender = queue.createAppender()) {
            Calls writer = calls ? appender.methodWriter(Calls.class) : null; // compiled at run time: slow
            while (!stopping && written < count) {
                String text = prefix + ":" + written;
                if (calls) {
                    writer.text(text);
                } else {
                    appender.writeBytes(Bytes.wrapForRead(text.getBytes(StandardCharsets.UTF_8)));
                    lastIndex = appender.lastIndexAppended();
                }
                if (stamps != null)
                    stamps.putLong((int) written * Long.BYTES, System.nanoTime());
                written++;
                if (ledger != null)
                    ledger.putLong(0, written); // survives a kill of this process
                if (rate > 0) { // no catching up: a burst might not fit into a cycle
                    due = Math.max(due + TimeUnit.SECONDS.toNanos(1) / rate, System.nanoTime());
                    waitUntil(due);
                }
            }
        } catch (Throwable error) { // reported when the writer is stopped
            thrown = error;
        }
    }

    private static MappedByteBuffer map(String path, long count) throws IOException {
        if (path == null)
            return null;
        try (RandomAccessFile file = new RandomAccessFile(path, "rw")) {
            MappedByteBuffer mapped = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, count * Long.BYTES);
            mapped.order(ByteOrder.nativeOrder());
            return mapped;
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
