import { describe, expect, test } from 'vitest';
import { createMayConnect } from './networks.ts';

describe('networks', () => {
  test.each([
    [['10.0.0.0/8'], '10.255.1.2', true],
    [['10.0.0.0/8'], '11.0.0.1', false],
    [['192.168.1.7'], '192.168.1.7', true],
    [['192.168.1.7'], '192.168.1.8', false],
    [['fd00::/8'], 'fd12::1', true],
    [['fd00::/8'], 'fe80::1', false],
    [['fe80::/10'], 'fe80::1%eth0', true],
    [['10.0.0.0/8', '::1'], '::1', true],
    [['0.0.0.0/0'], '::1', false],
    [['10.0.0.0/8'], '', false],
    [[], '203.0.113.9', true],
  ])('%j: %s %s', (networks, address, expected) => {
    expect(createMayConnect(networks)(address)).toBe(expected);
  });

  test.each(['10.0.0.0/33', '10.0.0/8', 'example.org', '10.0.0.0/', '::/129', '10.0.0.0/8/8', ''])(
    '%j is rejected as a network',
    (text) => {
      expect(() => createMayConnect([text])).toThrow(
        `${JSON.stringify(text)} is not a network: write it as 10.0.0.0/8, fd00::/8 or 192.168.1.7`,
      );
    },
  );
});
