package judge;

import net.openhft.chronicle.wire.SelfDescribingMarshallable;

import java.time.LocalDate;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A message with fields, as an application would define it. */
public final class Quote extends SelfDescribingMarshallable {
    public String symbol;
    public long id;
    public double price;
    public int quantity;
    public boolean live;
    public Side side;
    public LocalDate day;
    public List<String> venues = new ArrayList<>();
    public Map<String, Double> levels = new LinkedHashMap<>();
    public Leg leg;

    /** A message nested in a message. */
    public static final class Leg extends SelfDescribingMarshallable {
        public String name;
        public float ratio;
    }
}
