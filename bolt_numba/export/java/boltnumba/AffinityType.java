package boltnumba;

/** How much of the processor a model takes. */
public enum AffinityType {
    /** As many threads as the program was exported for. */
    CPU(0),
    /** The same, which is what the fastest cores do. */
    CPU_HIGH_PERFORMANCE(0),
    /** One thread. */
    CPU_LOW_POWER(1);

    final int threads;

    AffinityType(int threads) {
        this.threads = threads;
    }
}
