package judge;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import net.openhft.chronicle.queue.RollCycle;
import net.openhft.chronicle.queue.RollCycles;
import net.openhft.chronicle.queue.impl.RollingResourcesCache;

import java.io.File;

/** Every roll cycle that Java knows, with the names of its files. */
final class RollCycleTable {
    private RollCycleTable() {
    }

    static JsonObject print(JsonObject request) {
        JsonArray table = new JsonArray();
        for (RollCycle cycle : RollCycles.all()) {
            JsonObject row = new JsonObject();
            row.addProperty("name", cycle.toString());
            row.addProperty("format", cycle.format());
            row.addProperty("length_ms", cycle.lengthInMillis());
            row.addProperty("index_count", cycle.defaultIndexCount());
            row.addProperty("index_spacing", cycle.defaultIndexSpacing());
            row.addProperty("shift", Long.numberOfTrailingZeros(cycle.toIndex(1, 0)));
            row.addProperty("max_messages", cycle.maxMessagesPerCycle());
            row.add("files", files(cycle, request));
            table.add(row);
        }
        JsonObject reply = new JsonObject();
        reply.add("roll_cycles", table);
        return reply;
    }

    private static JsonArray files(RollCycle cycle, JsonObject request) {
        JsonArray files = new JsonArray();
        for (JsonElement epoch : request.getAsJsonArray("epochs")) {
            RollingResourcesCache names =
                    new RollingResourcesCache(cycle, epoch.getAsLong(), File::new, File::getName);
            for (JsonElement time : request.getAsJsonArray("times_ms")) {
                int number = cycle.current(time::getAsLong, epoch.getAsLong());
                JsonObject file = new JsonObject();
                file.add("epoch", epoch);
                file.add("time_ms", time);
                file.addProperty("cycle", number);
                file.addProperty("name", names.resourceFor(number).text);
                files.add(file);
            }
        }
        return files;
    }
}
