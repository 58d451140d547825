package ticks;

/** The alerts of the service. */
public interface Alerts {
    void alert(String symbol, double price);

    void done(long alerts);
}
