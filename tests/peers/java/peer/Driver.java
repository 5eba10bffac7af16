package peer;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.fluss.rpc.protocol.Errors;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;

/** Reads commands as JSON lines, runs them one at a time, writes answers and events as JSON lines. */
public final class Driver {
    static final ObjectMapper MAPPER = new ObjectMapper();

    private final PrintStream output;
    private final Commands commands = new Commands(this::send);
    private final ExecutorService threads =
            Executors.newCachedThreadPool(
                    task -> {
                        Thread thread = new Thread(task, "command");
                        thread.setDaemon(true);
                        return thread;
                    });

    private Driver(PrintStream output) {
        this.output = output;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        // What a library prints must not get between the answers.
        System.setOut(System.err);
        Driver driver = new Driver(answers);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            driver.send(driver.answer(MAPPER.readTree(line)));
        }
        System.exit(0);
    }

    private synchronized void send(ObjectNode message) {
        output.println(message);
    }

    /** A command has a thread of its own, so that one that hangs is reported instead of waited for. */
    private ObjectNode answer(JsonNode message) {
        ObjectNode answer = MAPPER.createObjectNode();
        answer.set("id", message.get("id"));
        Future<JsonNode> result = threads.submit(() -> commands.run(message.get("command").textValue(), message));
        try {
            long limitMs = (long) (message.get("timeout_s").doubleValue() * 1000);
            answer.set("result", result.get(limitMs, TimeUnit.MILLISECONDS));
        } catch (TimeoutException error) {
            result.cancel(true);
            describe(answer, error);
        } catch (ExecutionException error) {
            describe(answer, root(error));
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
        return answer;
    }

    private static Throwable root(Throwable error) {
        boolean wrapper = error instanceof ExecutionException || error instanceof CompletionException;
        return wrapper && error.getCause() != null ? root(error.getCause()) : error;
    }

    private static void describe(ObjectNode answer, Throwable error) {
        error.printStackTrace();
        ObjectNode details = answer.putObject("error");
        details.put("type", error.getClass().getSimpleName());
        details.put("message", String.valueOf(error.getMessage()));
        details.put("code", code(error));
    }

    /** The first code in the chain of causes that says more than "unknown". */
    private static int code(Throwable error) {
        int code = Errors.forException(error).code();
        boolean unknown = code == Errors.UNKNOWN_SERVER_ERROR.code();
        return unknown && error.getCause() != null ? code(error.getCause()) : code;
    }
}
