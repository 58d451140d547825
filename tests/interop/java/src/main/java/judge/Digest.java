package judge;

import com.google.gson.JsonObject;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.queue.ChronicleQueue;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.RollCycle;
import net.openhft.chronicle.wire.DocumentContext;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;

/**
 * Follows a queue and keeps a checksum: CRC-32 over the index (8 bytes, little-endian) and the payload of each
 * message. Indexes have to be contiguous, starting at 0 in every cycle.
 */
final class Digest {
    private final RollCycle rollCycle;
    private final CRC32 crc = new CRC32();
    private final ByteBuffer index = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
    private final byte[] payload = new byte[64 << 20];
    private long last = -1;
    private long count;
    private long cycles;
    private String gap;

    private Digest(RollCycle rollCycle) {
        this.rollCycle = rollCycle;
    }

    /** Stops after this many messages, or when none arrives within the requested time. */
    static JsonObject follow(ChronicleQueue queue, ExcerptTailer tailer, JsonObject request) throws Exception {
        Digest digest = new Digest(queue.rollCycle());
        long limit = Session.number(request, "limit", Long.MAX_VALUE);
        long patience = TimeUnit.MILLISECONDS.toNanos(Session.number(request, "wait_ms", 0));
        long since = System.nanoTime();
        while (digest.count < limit) {
            if (digest.one(tailer)) {
                since = System.nanoTime();
                continue;
            }
            if (System.nanoTime() - since >= patience)
                break;
            Thread.sleep(1);
        }
        JsonObject reply = new JsonObject();
        reply.addProperty("messages", digest.count);
        reply.addProperty("crc32", digest.crc.getValue());
        reply.addProperty("cycles", digest.cycles);
        reply.addProperty("last_index", digest.last);
        reply.addProperty("gap", digest.gap);
        return reply;
    }

    private boolean one(ExcerptTailer tailer) {
        try (DocumentContext document = tailer.readingDocument()) {
            if (!document.isPresent())
                return false;
            Bytes<?> bytes = document.wire().bytes();
            int length = (int) bytes.readRemaining();
            bytes.read(payload, 0, length);
            add(document.index(), length);
            return true;
        }
    }

    private void add(long at, int length) {
        boolean isNewCycle = last == -1 || rollCycle.toCycle(at) > rollCycle.toCycle(last);
        boolean isNext = isNewCycle ? rollCycle.toSequenceNumber(at) == 0 : at == last + 1;
        if (!isNext && gap == null)
            gap = Long.toHexString(at) + " after " + Long.toHexString(last);
        cycles += isNewCycle ? 1 : 0;
        last = at;
        count++;
        crc.update(index.putLong(0, at).array());
        crc.update(payload, 0, length);
    }
}
