// A client for test_clients_compiled.py: node's https or undici's fetch, through the proxy of the environment.
import http from "node:http";
import https from "node:https";
import tls from "node:tls";
import { createRequire } from "node:module";

const base = process.env.BASE;
const proxy = new URL(process.env.HTTPS_PROXY);
const login = "Basic " + Buffer.from(`${proxy.username}:${proxy.password}`).toString("base64");

// TLS to host:port through a CONNECT tunnel.
const tunnel = (host, port, connected) => {
  const authority = `${host}:${port || 443}`;
  const headers = { host: authority, "proxy-authorization": login };
  http.request({ host: proxy.hostname, port: proxy.port, method: "CONNECT", path: authority, headers })
    .on("connect", (response, socket) => {
      if (response.statusCode !== 200) connected(new Error(`${response.statusCode} ${response.statusMessage}`));
      else connected(null, tls.connect({ socket, servername: host }));
    })
    .on("error", connected)
    .end();
};

// Each way: ask(url, method, body) -> {status, pieces: async iterable of bytes}.
const ways = {
  https() {
    const agent = new https.Agent({ keepAlive: false });
    agent.createConnection = (options, connected) => tunnel(options.host, options.port, connected);
    return (url, method = "GET", body = undefined) => new Promise((done, failed) => {
      https.request(url, { agent, method }, (response) => done({ status: response.statusCode, pieces: response }))
        .on("error", failed)
        .end(body);
    });
  },
  undici() {
    const { fetch, Agent } = createRequire(import.meta.url)("undici"); // found by NODE_PATH
    const dispatcher = new Agent({
      connect: (options, connected) => tunnel(options.hostname, options.port, (error, socket) => {
        if (error) connected(error);
        else socket.once("secureConnect", () => connected(null, socket)).once("error", connected);
      }),
    });
    return async (url, method = "GET", body = undefined) => {
      try {
        const response = await fetch(url, { method, body, dispatcher });
        return { status: response.status, pieces: response.body ?? [] };
      } catch (error) {
        throw new Error(`${error.message}: ${error.cause?.message}`);
      }
    };
  },
};
const ask = ways[process.argv[2]]();

const read = async ({ pieces }) => {
  const parts = [];
  for await (const piece of pieces) parts.push(piece);
  return Buffer.concat(parts).toString();
};

const out = { events: [] };
out.json = JSON.parse(await read(await ask(base + "/json")));
out.upload = JSON.parse(await read(await ask(base + "/upload", "POST", "x".repeat(100000))));
const decoder = new TextDecoder();
for await (const piece of (await ask(base + "/events")).pieces) {
  for (const line of decoder.decode(piece, { stream: true }).split("\n")) {
    if (!line) continue;
    out.events.push(line);
    await read(await ask(`${base}/ack/${out.events.length - 1}`));
  }
}
const denied = await ask(base + "/denied");
out.denied = [denied.status, JSON.parse(await read(denied)).error.message];
out.elsewhere = await ask("https://elsewhere.test/").then((answer) => String(answer.status), (error) => error.message);
console.log(JSON.stringify(out));
process.exit(0);
