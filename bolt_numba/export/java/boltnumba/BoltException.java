package boltnumba;

/** What the library refused; the statuses are those of bolt_numba.h. */
public final class BoltException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** A bn_status. */
    public final int status;

    public BoltException(int status, String message) {
        super(message);
        this.status = status;
    }
}
