import { isIP } from 'node:net';
import { errnoOf } from '#base/errno.ts';

/** A request to the process in a network namespace. The answer has the same id. */
export type Question =
  | { readonly id: number; readonly ask: 'lookup'; readonly host: string }
  | {
      readonly id: number;
      readonly ask: 'connect';
      readonly address: string;
      readonly port: number;
      readonly localPort: number | undefined;
    }
  /** The caller has stopped waiting for the answer with this id. */
  | { readonly id: number; readonly ask: 'forget' };

export type Answer =
  | { readonly kind: 'ready' }
  | { readonly kind: 'addresses'; readonly id: number; readonly addresses: readonly string[] }
  /** The socket is sent with the message. */
  | { readonly kind: 'connected'; readonly id: number }
  | { readonly kind: 'failed'; readonly id: number; readonly code: string | undefined; readonly message: string };

/** The most questions that one process handles at a time. */
export const maxPendingQuestions = 512;
const maxAddresses = 64;
const maxHostChars = 255;
const maxTextChars = 1000;

type MessageFields = Readonly<Record<string, unknown>>;
const fieldsOf = (message: unknown): MessageFields =>
  typeof message === 'object' && message !== null ? (message as MessageFields) : {};

const isNumber = (value: unknown, min: number, max: number): value is number =>
  typeof value === 'number' && Number.isInteger(value) && value >= min && value <= max;
const isId = (value: unknown): value is number => isNumber(value, 1, Number.MAX_SAFE_INTEGER);
const isPort = (value: unknown): value is number => isNumber(value, 1, 65_535);
const isText = (value: unknown, maxChars = maxTextChars): value is string =>
  typeof value === 'string' && value.length > 0 && value.length <= maxChars;
const isAddress = (value: unknown): value is string => isText(value, maxHostChars) && isIP(value) !== 0;

/** Undefined: not a question. */
export function readQuestion(message: unknown): Question | undefined {
  const { id, ask, host, address, port, localPort } = fieldsOf(message);
  if (!isId(id)) return undefined;
  if (ask === 'forget') return { id, ask };
  if (ask === 'lookup' && isText(host, maxHostChars)) return { id, ask, host };
  const isComplete = isAddress(address) && isPort(port) && (localPort === undefined || isPort(localPort));
  return ask === 'connect' && isComplete ? { id, ask, address, port, localPort } : undefined;
}

/** Undefined: not an answer. */
export function readAnswer(message: unknown): Answer | undefined {
  const { kind, id, addresses, code, message: text } = fieldsOf(message);
  if (kind === 'ready') return { kind };
  if (!isId(id)) return undefined;
  if (kind === 'connected') return { kind, id };
  if (kind === 'addresses' && Array.isArray(addresses))
    return { kind, id, addresses: addresses.slice(0, maxAddresses).filter(isAddress) };
  if (kind !== 'failed' || !isText(text)) return undefined;
  return { kind, id, code: isText(code, 40) ? code : undefined, message: text };
}

export function failureAnswer(id: number, cause: unknown): Answer {
  const code = errnoOf(cause);
  const text = cause instanceof Error ? cause.message : String(cause);
  return { kind: 'failed', id, code, message: text.slice(0, maxTextChars) || 'it failed' };
}
