import { expect, test } from 'vitest';
import { failureAnswer, readAnswer, readQuestion } from './network-messages.ts';

test.each([
  null,
  7,
  'text',
  [],
  {},
  { id: 1 },
  { id: 'x', ask: 'lookup', host: 'localhost' },
  { id: 0, ask: 'lookup', host: 'localhost' },
  { id: 1.5, ask: 'forget' },
  { id: 1, ask: 'lookup', host: '' },
  { id: 1, ask: 'lookup', host: 'x'.repeat(256) },
  { id: 1, ask: 'open', host: 'localhost' },
  { id: 1, ask: 'connect', address: 'localhost', port: 1 },
  { id: 1, ask: 'connect', address: '::1', port: 0 },
  { id: 1, ask: 'connect', address: '::1', port: 1, localPort: 65_536 },
  { id: 1, ask: 'connect', port: 1 },
])('%j is not a question', (message) => {
  expect(readQuestion(message)).toBeUndefined();
});

test.each([
  { id: 1, ask: 'forget' },
  { id: 2, ask: 'lookup', host: 'filer' },
  { id: 3, ask: 'connect', address: 'fe80::1%eth0', port: 2049, localPort: 700 },
])('%j is a question, and further fields are ignored', (message) => {
  expect(readQuestion({ ...message, more: true })).toEqual(message);
});

test.each([
  null,
  'ready',
  {},
  { kind: 'connected' },
  { kind: 'connected', id: -1 },
  { kind: 'else', id: 1 },
  { kind: 'addresses', id: 1, addresses: '::1' },
  { kind: 'failed', id: 1, message: '' },
  { kind: 'failed', id: 1, message: 'x'.repeat(1001) },
])('%j is not an answer', (message) => {
  expect(readAnswer(message)).toBeUndefined();
});

test('an answer’s invalid or excess addresses are dropped', () => {
  const addresses = ['::1', 'localhost', 7, ...Array.from({ length: 100 }, (_, i) => `192.0.2.${i}`)];
  expect(readAnswer({ kind: 'addresses', id: 1, addresses })).toEqual({
    kind: 'addresses',
    id: 1,
    addresses: ['::1', ...Array.from({ length: 61 }, (_, i) => `192.0.2.${i}`)],
  });
});

test('a failure keeps its code, and its message is truncated to the maximum length', () => {
  const connectError = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });
  expect(readAnswer(failureAnswer(1, connectError))).toEqual({
    kind: 'failed',
    id: 1,
    code: 'ECONNREFUSED',
    message: 'connect ECONNREFUSED',
  });
  expect(readAnswer(failureAnswer(1, new Error('x'.repeat(5000))))).toMatchObject({ kind: 'failed' });
  expect(readAnswer(failureAnswer(1, new Error('')))).toMatchObject({ kind: 'failed' });
});
