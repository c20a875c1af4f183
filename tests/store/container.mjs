// Creates a container in Azurite, which has no other way to it than a signed request.
// Arguments: URL of the container, account, key.
import { createHmac } from "node:crypto";

const [url, account, key] = process.argv.slice(2);
const date = new Date().toUTCString();
const version = "2021-08-06";
const resource = `/${account}${new URL(url).pathname}\nrestype:container`;
const lines = ["PUT", ..."\n".repeat(10).split("\n"), `x-ms-date:${date}`, `x-ms-version:${version}`, resource];
const signature = createHmac("sha256", Buffer.from(key, "base64")).update(lines.join("\n"), "utf8").digest("base64");
const answer = await fetch(`${url}?restype=container`, {
  method: "PUT",
  headers: { "x-ms-date": date, "x-ms-version": version, Authorization: `SharedKey ${account}:${signature}` },
});
if (answer.status !== 201) {
  console.error(answer.status, await answer.text());
  process.exit(1);
}
