import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/** Iceberg's own REST catalog on loopback. Arguments: the warehouse and the SQLite file behind it. */
public final class RestCatalog {
    private RestCatalog() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties =
                Map.of(
                        "type", "jdbc",
                        "uri", "jdbc:sqlite:" + arguments[1],
                        "jdbc.schema-version", "V1",
                        "warehouse", arguments[0]);
        Catalog catalog = CatalogUtil.buildIcebergCatalog("behind", properties, new Configuration());
        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
        server.setHandler(context);
        server.start();
        System.out.println("port " + ((ServerConnector) server.getConnectors()[0]).getLocalPort());
        server.join();
    }
}
