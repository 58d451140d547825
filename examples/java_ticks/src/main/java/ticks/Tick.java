package ticks;

import net.openhft.chronicle.wire.SelfDescribingMarshallable;

/** A price, and when it was made, in nanoseconds since 1970. tick_service.py has a Struct with the same fields. */
public class Tick extends SelfDescribingMarshallable {
    String symbol;
    double price;
    long time;
}
