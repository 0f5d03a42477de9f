/**
 * Creates and deletes volumes through the REST API, with a given number of requests in flight, and prints the
 * durations. It has a minimal HTTP/1.1 client of its own: on a small machine a full client would compete with the
 * server for the CPU, and the benchmark would measure the client.
 */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

const [socketPath = '', store = '', prefix = '', countText, inFlightText, what = 'both'] = process.argv.slice(2);
const count = Number(countText);
const inFlight = Number(inFlightText);

type Exchange = (request: string, expected: number) => Promise<void>;

interface Waiting {
  resolve(): void;
  reject(error: Error): void;
  readonly expected: number;
}

/** Each connection has one request in flight. */
async function openConnection(): Promise<{ readonly socket: Socket; readonly exchange: Exchange }> {
  const socket = connect(socketPath);
  await once(socket, 'connect');
  let waiting: Waiting | undefined;
  let received = '';
  // In Latin-1 one character is one byte, so Content-Length can be compared with the string's length.
  socket.setEncoding('latin1');
  socket.on('data', (chunk: string) => {
    received += chunk;
    const answer = complete(received);
    if (answer === undefined || waiting === undefined) return;
    received = '';
    const { resolve, reject, expected } = waiting;
    waiting = undefined;
    if (answer.status === expected) resolve();
    else reject(new Error(`expected ${expected}, got: ${answer.text}`));
  });
  socket.on('error', (error) => waiting?.reject(error));
  socket.on('close', () => waiting?.reject(new Error('the server closed the connection')));
  const exchange: Exchange = (request, expected) =>
    new Promise((resolve, reject) => {
      waiting = { resolve, reject, expected };
      socket.write(request);
    });
  return { socket, exchange };
}

function complete(text: string): { readonly status: number; readonly text: string } | undefined {
  const head = text.indexOf('\r\n\r\n');
  if (head < 0) return undefined;
  const length = /\r\ncontent-length: *(\d+)\r\n/i.exec(text.slice(0, head + 2))?.[1] ?? '0';
  if (text.length < head + 4 + Number(length)) return undefined;
  return { status: Number(text.slice(9, 12)), text };
}

const create = (name: string): string => {
  const body = JSON.stringify({ store, name });
  return `POST /v1/volumes HTTP/1.1\r\nHost: stowage\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
};
const remove = (name: string): string => `DELETE /v1/volumes/${store}..${name} HTTP/1.1\r\nHost: stowage\r\n\r\n`;

const connections = await Promise.all(Array.from({ length: inFlight }, openConnection));

/** Every connection takes the next name until all names are used. */
async function timed(request: (name: string) => string, expected: number): Promise<number> {
  let next = 0;
  const began = performance.now();
  await Promise.all(
    connections.map(async ({ exchange }) => {
      while (next < count) await exchange(request(`${prefix}-${next++}`), expected);
    }),
  );
  return performance.now() - began;
}

const createMs = what === 'delete' ? 0 : await timed(create, 201);
const deleteMs = what === 'create' ? 0 : await timed(remove, 200);
for (const { socket } of connections) socket.destroy();
console.log(JSON.stringify({ createMs, deleteMs }));
