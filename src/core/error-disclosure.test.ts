import { expect, test } from 'vitest';
import { redactForUser } from './error-disclosure.ts';

const whereToLook = 'in the log.';
const trouble = (reason: string) => ({
  code: 'busy',
  reason,
  message: 'process 7 has /srv/data open',
  action: 'kill 7',
});

test('users read a message for everybody in full', () => {
  expect(redactForUser(trouble('store-busy'), whereToLook)).toEqual(trouble('store-busy'));
});

test.each(['image-busy', 'reason-of-a-newer-version', 'constructor', ''])(
  'users read only the short text of the code for an error with the reason "%s"',
  (reason) => {
    expect(redactForUser(trouble(reason), whereToLook)).toEqual({
      code: 'busy',
      reason,
      message: 'another operation is in progress',
      action: 'Try again in a while. If it persists, ask the administrator, who finds out why in the log.',
    });
  },
);

test('users read the short text of the reason if the text of the code would blame the wrong component', () => {
  const { message } = redactForUser({ ...trouble('agent-lost'), code: 'unavailable' }, whereToLook);
  expect(message).toBe('the connection to the agent of the node was lost before it answered');
});
