package ticks;

/** What the service answers. */
public interface Alerts {
    void alert(String symbol, double price);

    void done(long alerts);
}
