// A client for test_clients_compiled.py: java.net.http.HttpClient with its defaults. Prints as JSON what it saw.
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;

public class Client {
    static final HttpClient client = HttpClient.newHttpClient();

    static HttpRequest.Builder request(String url) {
        return HttpRequest.newBuilder(URI.create(url));
    }

    static String get(String url) throws Exception {
        return client.send(request(url).build(), BodyHandlers.ofString()).body();
    }

    public static void main(String[] arguments) throws Exception {
        String base = System.getenv("BASE");
        String json = get(base + "/json");
        var upload = request(base + "/upload").POST(BodyPublishers.ofString("x".repeat(100000))).build();
        String uploaded = client.send(upload, BodyHandlers.ofString()).body();

        var events = new ArrayList<String>();
        var response = client.send(request(base + "/events").build(), BodyHandlers.ofInputStream());
        try (var lines = new BufferedReader(new InputStreamReader(response.body()))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (!line.isEmpty()) {
                    events.add("\"" + line + "\"");
                    get(base + "/ack/" + (events.size() - 1));
                }
            }
        }

        var denied = client.send(request(base + "/denied").build(), BodyHandlers.ofString());
        String reason = denied.headers().firstValue("x-seamgate-reason").orElse("");
        String elsewhere;
        try {
            // For a refused CONNECT this client hands out the proxy's answer as if it were the server's.
            elsewhere = "" + client.send(request("https://elsewhere.test/").build(), BodyHandlers.ofString()).statusCode();
        } catch (IOException refused) {
            elsewhere = refused.getMessage();
        }
        System.out.printf("{\"json\": %s, \"upload\": %s, \"events\": %s, \"denied\": [%d, \"%s\"], \"elsewhere\": \"%s\"}%n",
            json, uploaded, events, denied.statusCode(), reason, elsewhere);
    }
}
