import { posix } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { StowageError } from './errors.ts';
import {
  isVolumeId,
  isVolumeName,
  nameFor,
  namePattern,
  newOperationId,
  newVolumeId,
  qualified,
  quoted,
  storeName,
  volumeName,
} from './names.ts';

const nameError = (name: string): StowageError => {
  try {
    volumeName(name);
  } catch (thrown) {
    if (thrown instanceof StowageError) return thrown;
    throw thrown;
  }
  throw new Error(`${JSON.stringify(name)} passed`);
};

const allowedCharacters = [...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-'];
/** Made of allowed characters, so that the other rules decide. */
const nearlyValidName = fc.string({
  unit: fc.constantFrom(...allowedCharacters, '..', '.meta', '.stowage', 'sv1-'),
  maxLength: 140,
});
const anyText = fc.oneof(nearlyValidName, fc.string({ unit: 'binary', maxLength: 300 }), fc.string({ maxLength: 20 }));

describe('a valid name', () => {
  test.each(['a', '0', 'Data_1', 'v1.2-rc.3', 'x.metal', 'x.meta.old', 'meta', 'sv1-x', 'a'.repeat(128)])(
    'can be %s',
    (name) => {
      expect(volumeName(name)).toBe(name);
      expect(storeName(name)).toBe(name);
      expect(isVolumeName(name)).toBe(true);
    },
  );

  test('is safe as a path component, beside Stowage’s own files', () => {
    let passed = 0;
    fc.assert(
      fc.property(anyText, (name) => {
        if (!isVolumeName(name)) return;
        passed++;
        const path = posix.join('/store', name);
        expect(posix.dirname(path)).toBe('/store');
        expect(posix.basename(path)).toBe(name);
        expect(posix.normalize(path)).toBe(`/store/${name}`);
        // With the longest suffix, the name is still a valid file name.
        expect(Buffer.byteLength(`${name}.meta`)).toBeLessThanOrEqual(255);
        expect(name).not.toMatch(/^[.-]|\.meta$|\.\./);
        expect(name).toMatch(/^[\x21-\x7e]+$/);
        expect(encodeURIComponent(name)).toBe(name);
        expect(name).toMatch(new RegExp(namePattern));
        expect(isVolumeId(name)).toBe(false);
      }),
      { numRuns: 2000 },
    );
    // Otherwise the property would hold for lack of examples.
    expect(passed).toBeGreaterThan(100);
  });

  test('can be recovered from the qualified form', () => {
    const name = nearlyValidName.filter(isVolumeName);
    fc.assert(
      fc.property(name, name, (store, volume) => {
        const flat = qualified(storeName(store), volumeName(volume));
        // At the last separator: a store's name may end with a dot, but a volume's name never begins with one.
        const separator = flat.lastIndexOf('..');
        expect([flat.slice(0, separator), flat.slice(separator + 2)]).toEqual([store, volume]);
      }),
    );
  });
});

describe('an invalid name', () => {
  test.each([
    ['', "'' cannot be a volume name: it is empty"],
    ['..', "'..' cannot be a volume name: it contains '..'"],
    ['a..b', "'a..b' cannot be a volume name: it contains '..'"],
    ['../etc/passwd', "'../etc/passwd' cannot be a volume name: it contains '..'"],
    ['x.meta', "'x.meta' cannot be a volume name: names that end in '.meta' are reserved for Stowage's own records"],
    ['.stowage', "'.stowage' cannot be a volume name: it must begin with a letter or a digit"],
    ['.', "'.' cannot be a volume name: it must begin with a letter or a digit"],
    ['-rf', "'-rf' cannot be a volume name: it must begin with a letter or a digit"],
    ['a/b', "'a/b' cannot be a volume name: only the letters A-Z a-z, digits, and _ . - may be used"],
    ['a\0b', "'a\\u{0}b' cannot be a volume name: only the letters A-Z a-z, digits, and _ . - may be used"],
    ['a\n', "'a\\u{a}' cannot be a volume name: only the letters A-Z a-z, digits, and _ . - may be used"],
    // A Cyrillic letter that looks like a Latin one.
    ['dаta', "'d\\u{430}ta' cannot be a volume name: only the letters A-Z a-z, digits, and _ . - may be used"],
    ['a'.repeat(129), `'${'a'.repeat(61)}...' cannot be a volume name: it has 129 characters, the maximum is 128`],
  ])('can be %j', (name, message) => {
    expect(nameError(name)).toMatchObject({ message, code: 'invalid', reason: 'name-invalid' });
    expect(nameError(name).action).toBe(
      'Choose a name of 1 to 128 characters from A-Z a-z 0-9 _ . - that begins with a letter or digit.',
    );
    expect(() => storeName(name)).toThrow(message.replace('a volume name', 'a store name'));
    expect(isVolumeName(name)).toBe(false);
  });

  test('can have the form of a volume id', () => {
    expect(nameError(newVolumeId()).message).toContain('it has the form of a volume id');
  });

  test('contains a forbidden character at any position', () => {
    const hostile = fc.constantFrom(
      '/',
      '\\',
      '\0',
      '\n',
      '\r',
      ' ',
      '~',
      '$',
      '`',
      '*',
      '?',
      ':',
      '%',
      '"',
      "'",
      '\u202e',
      '\u2024',
      'é',
      '\ud800',
      '\x7f',
    );
    fc.assert(
      fc.property(nearlyValidName, hostile, nearlyValidName, (before, character, after) => {
        expect(isVolumeName(before + character + after)).toBe(false);
      }),
    );
  });

  test('is escaped in the error message', () => {
    fc.assert(
      fc.property(anyText, (name) => {
        if (isVolumeName(name)) return;
        const { message } = nameError(name);
        expect(message).toMatch(/^[\x20-\x7e]+$/);
        expect(message.length).toBeLessThan(700);
      }),
      { numRuns: 1000 },
    );
  });
});

describe('ids', () => {
  test('are valid and never the same', () => {
    const ids = Array.from({ length: 100 }, newVolumeId);
    expect(ids.every(isVolumeId)).toBe(true);
    expect(new Set(ids).size).toBe(100);
    expect(newOperationId()).toMatch(/^op1-[0-9a-f-]{36}$/);
    expect(newOperationId()).not.toBe(newOperationId());
  });

  test.each([
    '',
    'sv1-',
    `SV1-${newVolumeId().slice(4)}`,
    `${newVolumeId()}\n`,
    ` ${newVolumeId()}`,
    `${newVolumeId()}0`,
  ])('cannot be %j', (text) => {
    expect(isVolumeId(text)).toBe(false);
  });
});

test('quoted text is shortened and escaped', () => {
  expect(quoted('plain')).toBe("'plain'");
  expect(quoted('a\u001b[31m🧳')).toBe("'a\\u{1b}[31m\\u{1f9f3}'");
  expect(quoted('x'.repeat(65))).toBe(`'${'x'.repeat(61)}...'`);
});

describe('a name from outside', () => {
  test('is kept if it is a valid volume name', () => {
    expect(nameFor('pvc-0b6f0e6a-1b1f-4c7e-9d2e-4c9a3f4a9b11')).toBe('pvc-0b6f0e6a-1b1f-4c7e-9d2e-4c9a3f4a9b11');
  });

  test('is otherwise turned into a recognizable volume name', () => {
    expect(nameFor('team a/photos & more')).toMatch(/^team-a-photos-more-[0-9a-f]{32}$/);
    expect(nameFor('../..')).toMatch(/^volume-[0-9a-f]{32}$/);
    expect(nameFor('x'.repeat(500))).toMatch(/^x{80}-[0-9a-f]{32}$/);
  });

  test('always gives a valid name, equal only for equal foreign names', () => {
    fc.assert(
      fc.property(anyText, anyText, (one, other) => {
        expect(isVolumeName(nameFor(one))).toBe(true);
        expect(nameFor(one) === nameFor(other)).toBe(one === other);
      }),
    );
  });
});
