import { readFile } from 'node:fs/promises';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { onAbort } from '#base/aborted.ts';
import type { Clock } from '#base/clock.ts';
import { jsonIn } from '#base/json.ts';
import { problemIn } from '#base/problem.ts';
import { streamOver } from '#base/socket-stream.ts';
import { terminalSafe } from '#base/terminal-safe.ts';
import { agentUpgrade } from '../names.ts';

/** The leader's address, and how to verify its certificate. */
export interface LeaderAddress {
  readonly host: string;
  readonly port: number;
  readonly servername: string;
  readonly ca: string;
}

export interface LeaderConnectionOptions extends LeaderAddress {
  readonly clock: Clock;
  readonly tokenFile: string;
}

/** The leader was reached, and rejected the agent. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
}

const connectTimeoutMs = 20_000;
const maxAnswerChars = 16 * 1024;

/** Connects and upgrades the connection: afterwards the leader sends the requests. */
export const connectToLeader = (to: LeaderConnectionOptions, signal: AbortSignal): Promise<Duplex> =>
  withLeader(to, connectTimeoutMs, signal, requestUpgrade);

/** Sends one request and returns the text of the answer. */
export const askLeader = (
  to: LeaderConnectionOptions,
  path: string,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<string> =>
  withLeader(to, timeoutMs, signal, async (socket, token, host) => {
    using _ = { [Symbol.dispose]: () => socket.destroy() };
    return await requestText(socket, {
      path,
      headers: { host, authorization: `Bearer ${token}`, connection: 'close' },
    });
  });

async function withLeader<T>(
  to: LeaderConnectionOptions,
  ms: number,
  signal: AbortSignal,
  useSocket: (socket: TLSSocket, token: string, host: string) => Promise<T>,
): Promise<T> {
  using limit = to.clock.deadline(ms, signal);
  // Read the token each time: the kubelet renews it.
  const token = (await readFile(to.tokenFile, { encoding: 'utf8', signal: limit.signal })).trim();
  const socket = connectTls({
    host: to.host,
    port: to.port,
    servername: to.servername,
    ca: to.ca,
    minVersion: 'TLSv1.2',
    // The published authority may be the server's own certificate, whose issuer is not published.
    allowPartialTrustChain: true,
  });
  using _ = onAbort(limit.signal, () => {
    socket.destroy(limit.signal.reason instanceof Error ? limit.signal.reason : new Error('stopped'));
  });
  try {
    // Send nothing, above all not the token, before the server's certificate is verified.
    await waitForTls(socket);
    return await useSocket(socket, token, to.servername);
  } catch (thrown) {
    socket.destroy();
    throw thrown;
  }
}

async function waitForTls(socket: TLSSocket): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  socket.once('secureConnect', resolve);
  // This handler stays: an `error` event without a handler would end the process.
  socket.on('error', reject);
  socket.once('close', () => reject(new Error('the connection was closed')));
  socket.setNoDelay(true);
  await promise;
}

async function requestUpgrade(socket: TLSSocket, token: string, host: string): Promise<Duplex> {
  const { promise, resolve, reject } = Promise.withResolvers<Duplex>();
  const headers = { host, authorization: `Bearer ${token}`, connection: 'Upgrade', upgrade: agentUpgrade.protocol };
  const request = httpRequest({ createConnection: () => socket, method: 'GET', path: agentUpgrade.path, headers });
  request.on('upgrade', ({ headers: answer }, stream, head) => {
    if (answer.upgrade === agentUpgrade.protocol) resolve(streamOver(stream, { head }));
    else reject(new Error('the controller switched to another protocol'));
  });
  request.on('response', (answer) => void refusalOf(answer).then(reject, reject));
  request.on('error', reject);
  request.on('close', () => reject(new Error('the connection was closed')));
  request.end();
  return await promise;
}

async function requestText(
  socket: TLSSocket,
  target: { readonly path: string; readonly headers: Readonly<Record<string, string>> },
): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
  const request = httpRequest({ createConnection: () => socket, method: 'GET', ...target });
  request.on('response', resolve).on('error', reject);
  request.on('close', () => reject(new Error('the connection was closed')));
  request.end();
  const answer = await promise;
  if (answer.statusCode !== 200) throw await refusalOf(answer);
  return await textOf(answer);
}

async function textOf(answer: IncomingMessage): Promise<string> {
  let text = '';
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    text += chunk.toString('utf8');
    if (text.length > maxAnswerChars) break;
  }
  return text;
}

async function refusalOf(answer: IncomingMessage): Promise<Error> {
  const text = await textOf(answer);
  return new Refusal(`the controller rejected this agent: ${problemText(text) ?? `status ${answer.statusCode ?? 0}`}`);
}

function problemText(text: string): string | undefined {
  const problem = problemIn(jsonIn(text));
  return problem && terminalSafe(`${problem.detail}. ${problem.action}`);
}
