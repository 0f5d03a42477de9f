import { describe, expect, test } from 'vitest';
import { redactForUser } from './error-disclosure.ts';
import { relayed, type StowageError } from './errors.ts';
import type { StoreConfig } from './model.ts';
import { storeUnavailable } from './store-errors.ts';

const config = { name: 'silver' } as StoreConfig;
const problem = (code: StowageError['code'], reason: string): StowageError =>
  relayed('10.10.2.4 does not let this host mount /export', { code, reason, action: 'Edit /etc/exports.' });
const whereToLook = 'in the log of Stowage on this host.';

describe('a store that could not be opened', () => {
  test('because its server denied access is reported to users as a permission problem, with whom to ask', () => {
    const error = storeUnavailable(config, problem('denied', 'nfs-export-denied'));
    expect(redactForUser(error, whereToLook)).toEqual({
      // Stowage retries opening the store by itself, so a request may be repeated.
      code: 'unavailable',
      reason: 'nfs-export-denied',
      message: "access to store 'silver' is denied: this is a permission problem, not a network problem",
      action: 'Ask the administrator to grant Stowage access; the reason is found in the log of Stowage on this host.',
    });
    // An error that another process sent as JSON.
    const { code, reason, message, action } = error;
    expect(redactForUser({ code, reason, message, action }, whereToLook).message).toBe(
      'access to the store is denied: this is a permission problem, not a network problem',
    );
    expect(message).toBe("store 'silver' cannot be used: 10.10.2.4 does not let this host mount /export");
  });

  test('because its server closes every connection of this host is reported as most likely a permission problem', () => {
    const error = storeUnavailable(config, problem('unavailable', 'nfs-hangs-up'));
    expect(redactForUser(error, whereToLook)).toMatchObject({
      message:
        "the server of store 'silver' ends every connection from this host at once: most likely it does not allow this host, which is a permission problem, not a network problem",
      action: 'Ask the administrator to grant Stowage access; the reason is found in the log of Stowage on this host.',
    });
  });

  test.each(['nfs-refused', 'nfs-no-route', 'nfs-connection-lost'])(
    'because of %s is not reported as a permission problem',
    (reason) => {
      expect(redactForUser(storeUnavailable(config, problem('unavailable', reason)), whereToLook)).toMatchObject({
        message: 'the server of the store does not answer: a network or server failure, not missing permissions',
        action: expect.stringMatching(/^Try again in a while/),
      });
    },
  );

  test('because its server does not list the export is reported as most likely a permission problem', () => {
    expect(
      redactForUser(storeUnavailable(config, problem('unavailable', 'nfs-export-withheld')), whereToLook).message,
    ).toBe(
      "the server of store 'silver' does not export the store's directory to this host: most likely it does not allow this host, which is a permission problem, not a network problem",
    );
  });
});

test.each([
  ['nfs-read-only', "the store's server allows reading only"],
  ['nfs-tls-certificate', "Stowage does not trust the certificate of the store's server"],
  ['store-file-system-read-only', "the store's file system is read-only"],
  ['store-records-foreign', "Stowage cannot use the directory for the store's records"],
])('the error %s is not described to users as a permission problem', (reason, message) => {
  const failure = problem('denied', reason);
  for (const error of [failure, storeUnavailable(config, failure)])
    expect(redactForUser(error, whereToLook)).toMatchObject({
      message,
      action: expect.stringMatching(/sk the administrator, who finds out why/),
    });
});
