package ticks;

import net.openhft.chronicle.wire.SelfDescribingMarshallable;

/** A price and its time, in nanoseconds since 1970. tick_service.py has a Struct with the same fields. */
public class Tick extends SelfDescribingMarshallable {
    String symbol;
    double price;
    long time;
}
