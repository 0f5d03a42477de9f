/**
 * The program that network-process.ts starts inside a network namespace: it resolves names and opens TCP connections
 * there, and hands them to its parent through their channel. It ends with its parent.
 */

import { lookup } from 'node:dns/promises';
import { connect, type Socket } from 'node:net';
import process from 'node:process';
import { localAddressOptions } from '#wire/rpc/local-address.ts';
import { type Answer, failureAnswer, maxPendingQuestions, type Question, readQuestion } from './network-messages.ts';

/** The parent gives up much earlier. */
const maxAnswerMs = 60_000;

/** Pending requests by id. Undefined: a name is being looked up. */
const pendingSockets = new Map<number, Socket | undefined>();

function sendAnswer(answer: Answer, socket?: Socket): void {
  // If the parent is gone, this process ends too.
  process.send?.(answer, socket, {}, () => undefined);
}

async function findAddresses(id: number, host: string): Promise<void> {
  pendingSockets.set(id, undefined);
  try {
    const found = await lookup(host, { all: true });
    sendAnswer({ kind: 'addresses', id, addresses: found.map(({ address }) => address) });
  } catch (cause) {
    sendAnswer(failureAnswer(id, cause));
  } finally {
    pendingSockets.delete(id);
  }
}

function openConnection({ id, address, port, localPort }: Extract<Question, { ask: 'connect' }>): void {
  const socket = connect({ host: address, port, ...localAddressOptions(address, localPort) });
  pendingSockets.set(id, socket);
  // The parent reads what the server sends.
  socket.pause();
  socket.setTimeout(maxAnswerMs, () => socket.destroy(new Error('no answer in time')));
  socket.once('error', (cause) => sendAnswer(failureAnswer(id, cause)));
  socket.once('close', () => pendingSockets.delete(id));
  socket.once('connect', () => {
    pendingSockets.delete(id);
    sendAnswer({ kind: 'connected', id }, socket);
  });
}

/** Frees the slot at once, before the kernel has closed the socket, because the next request may already wait. */
function forget(id: number): void {
  const socket = pendingSockets.get(id);
  if (socket === undefined) return;
  pendingSockets.delete(id);
  socket.destroy();
}

function serve(question: Question): void {
  const { id, ask } = question;
  if (ask === 'forget') forget(id);
  else if (pendingSockets.size >= maxPendingQuestions || pendingSockets.has(id))
    sendAnswer(failureAnswer(id, new Error('too many questions at once')));
  else if (ask === 'connect') openConnection(question);
  else void findAddresses(id, question.host);
}

process.on('message', (message) => {
  const question = readQuestion(message);
  if (question !== undefined) serve(question);
});
process.once('disconnect', () => process.exit(0));
// A process without a parent, started by hand, exits at once.
if (process.connected) sendAnswer({ kind: 'ready' });
