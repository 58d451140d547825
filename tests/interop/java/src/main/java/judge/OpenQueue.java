package judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import net.openhft.chronicle.bytes.SyncMode;
import net.openhft.chronicle.core.time.SetTimeProvider;
import net.openhft.chronicle.core.time.SystemTimeProvider;
import net.openhft.chronicle.core.time.TimeProvider;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.RollCycle;
import net.openhft.chronicle.queue.RollCycles;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueue;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueueBuilder;
import net.openhft.chronicle.wire.DocumentContext;
import net.openhft.chronicle.wire.WireType;

import java.io.File;
import java.nio.file.Path;
import java.time.LocalTime;
import java.time.ZoneId;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;

/** One queue with its clock, its appender and an optional background writer. */
final class OpenQueue implements AutoCloseable {
    final SingleChronicleQueue queue;
    private final SetTimeProvider clock;
    private ExcerptAppender appender;
    private DocumentContext held;
    private Background background;

    OpenQueue(JsonObject request) {
        SingleChronicleQueueBuilder builder = SingleChronicleQueueBuilder.builder(
                Path.of(request.get("path").getAsString()),
                WireType.valueOf(Session.text(request, "wire_type", "BINARY_LIGHT")));
        String cycle = Session.text(request, "roll_cycle", null);
        if (cycle != null)
            builder.rollCycle(rollCycle(cycle));
        long fixed = Session.number(request, "time_ms", Long.MIN_VALUE);
        clock = fixed == Long.MIN_VALUE ? null : new SetTimeProvider(TimeUnit.MILLISECONDS.toNanos(fixed));
        builder.timeProvider(clock == null ? moving(request) : clock);
        builder.timeoutMS(Session.number(request, "timeout_ms", 10_000));
        builder.readOnly(Session.flag(request, "read_only"));
        configure(builder, request);
        queue = builder.build();
    }

    /** Options without a default of ours: set only on request. */
    private static void configure(SingleChronicleQueueBuilder builder, JsonObject request) {
        if (request.has("epoch"))
            builder.epoch(request.get("epoch").getAsLong());
        if (request.has("roll_time"))
            builder.rollTime(LocalTime.parse(request.get("roll_time").getAsString()), ZoneId.of("UTC"));
        if (request.has("block_size"))
            builder.blockSize(request.get("block_size").getAsInt());
        if (request.has("index_count"))
            builder.indexCount(request.get("index_count").getAsInt());
        if (request.has("index_spacing"))
            builder.indexSpacing(request.get("index_spacing").getAsInt());
        if (request.has("sync_mode"))
            builder.syncMode(SyncMode.valueOf(request.get("sync_mode").getAsString()));
        if (request.has("source_id"))
            builder.sourceId(request.get("source_id").getAsInt());
    }

    static RollCycle rollCycle(String name) {
        for (RollCycle cycle : RollCycles.all())
            if (cycle.toString().equals(name))
                return cycle;
        throw new IllegalArgumentException("no roll cycle " + name);
    }

    /** The real clock, one that is shift_ms ahead of it, or one at speed times real time since since_ms. */
    private static TimeProvider moving(JsonObject request) {
        long shift = Session.number(request, "shift_ms", 0);
        long speed = Session.number(request, "speed", 1);
        long since = Session.number(request, "since_ms", 0);
        if (shift == 0 && speed == 1)
            return SystemTimeProvider.INSTANCE;
        return () -> since + (SystemTimeProvider.INSTANCE.currentTimeMillis() - since) * speed + shift;
    }

    JsonObject perform(String op, JsonObject request) throws Exception {
        JsonObject reply = new JsonObject();
        switch (op) {
            case "set-time":
                clock.currentTimeMillis(request.get("time_ms").getAsLong());
                return reply;
            case "append":
                return new Append(appender()).all(request.getAsJsonArray("messages"));
            case "start-append":
                background = new Background(queue, request);
                return reply;
            case "stop-append":
                return background.stop(Session.flag(request, "let_finish"));
            case "bench-tail":
                return Bench.tail(queue, request);
            case "bench-append":
                return Bench.append(queue, request);
            case "hold-lock":
                held = appender().writingDocument();
                held.wire().bytes().write(Values.bytes(Session.text(request, "hex", "")));
                return reply;
            case "release-lock":
                if (Session.flag(request, "rollback"))
                    held.rollbackOnClose();
                held.close();
                held = null;
                return reply;
            case "append-lock":
                if (Session.flag(request, "held"))
                    queue.appendLock().lock();
                else
                    queue.appendLock().unlock();
                return reply;
            case "sync":
                appender().sync();
                return reply;
            case "dump":
                reply.addProperty("text", queue.dump());
                return reply;
            case "info":
                return info();
            case "close":
                close();
                return reply;
            default:
                throw new IllegalArgumentException("no operation " + op);
        }
    }

    private ExcerptAppender appender() {
        if (appender == null)
            appender = queue.createAppender();
        return appender;
    }

    private JsonObject info() {
        JsonObject reply = new JsonObject();
        reply.addProperty("entry_count", queue.entryCount());
        reply.addProperty("first_index", queue.firstIndex());
        reply.addProperty("last_index", queue.lastIndex());
        reply.addProperty("first_cycle", queue.firstCycle());
        reply.addProperty("last_cycle", queue.lastCycle());
        reply.addProperty("cycle", queue.cycle());
        reply.addProperty("epoch", queue.epoch());
        reply.addProperty("roll_cycle", queue.rollCycle().toString());
        JsonArray files = new JsonArray();
        String[] names = queue.file().list();
        if (names != null) {
            Arrays.sort(names);
            for (String name : names)
                if (name.endsWith(SingleChronicleQueue.SUFFIX))
                    files.add(new File(name).getName());
        }
        reply.add("files", files);
        return reply;
    }

    @Override
    public void close() throws Exception {
        if (background != null)
            background.stop(false);
        if (held != null)
            held.close();
        if (appender != null)
            appender.close();
        queue.close();
    }
}
