// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the strings are programs

import { glob, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { errorCodes } from '#core/error-codes.ts';

const repository = dirname(dirname(import.meta.dirname));
const page = await readFile(join(repository, 'docs', 'kubernetes-troubleshooting.md'), 'utf8');

test('every code has an entry in the page for clusters', () => {
  const described = Array.from(page.matchAll(/^\| `([a-z-]+)` \| [A-Za-z]+ \| .{40}/gm), ([, code]) => code);
  expect(described.toSorted()).toEqual(Object.keys(errorCodes).toSorted());
});

/** Messages of Kubernetes and of the C library. */
const foreignMessages = [
  'Disk quota exceeded',
  'Read-only file system',
  'Stale file handle',
  'Transport endpoint is not connected',
  'driver name file.stowage.dev not found in the list of registered CSI drivers',
  'timed out waiting for the condition',
  'waiting for first consumer',
];

const symptomsIn = (text: string): readonly string[] =>
  Array.from(text.matchAll(/^\*\*(.+?)\*\*/gm), ([, bold = '']) => bold).flatMap((bold) =>
    Array.from(bold.matchAll(/`([^`]+)`/g), ([, quoted = '']) => quoted),
  );

/** The symptom may begin with an Event's reason. The placeholders `…`, 'x' and NAME match anything. */
function patternsOf(symptom: string): readonly RegExp[] {
  const [, reason, rest = symptom] = /^([A-Z][a-z]+[A-Z]\w+) … (.+)$/.exec(symptom) ?? [];
  const said = rest.replaceAll(/^… | …$/g, '');
  const words = said.split(/…|'x'|\bNAME\b/).map((part) => part.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&'));
  const whole = new RegExp(words.join('.{0,60}?'));
  return reason === undefined ? [whole] : [new RegExp(`'${reason}'`), whole];
}

async function sources(): Promise<readonly string[]> {
  const texts: string[] = [];
  for await (const path of glob('src/**/*.ts', { cwd: repository, exclude: ['src/**/*.test.ts', 'src/testing/**'] }))
    texts.push(await readFile(join(repository, path), 'utf8'));
  // Without comments, which users do not see.
  return texts.map((text) => text.replaceAll(/^\s*(?:\/\/|\/?\*).*$/gm, ''));
}

describe('the symptoms on the page for clusters', () => {
  test('are texts of the program, of Kubernetes or of the C library', async () => {
    const all = await sources();
    const unsaid = symptomsIn(page)
      .filter((symptom) => !foreignMessages.includes(symptom))
      .filter((symptom) => !patternsOf(symptom).every((pattern) => all.some((text) => pattern.test(text))));
    expect(unsaid).toEqual([]);
    expect(foreignMessages.filter((symptom) => !symptomsIn(page).includes(symptom))).toEqual([]);
  });

  test('match with different placeholders, and do not match with a different word', () => {
    const isSaid = (symptom: string): boolean =>
      patternsOf(symptom).every((pattern) =>
        pattern.test("report('Failed'); throw f(`store '${name}' (${why}) is unhealthy`)"),
      );
    expect(isSaid("store 'x' … is unhealthy")).toBe(true);
    expect(isSaid("ProvisioningFailed … store 'x'")).toBe(false);
    expect(isSaid("store 'x' is healthy")).toBe(false);
    expect(symptomsIn('**`a` or `b`.** `c`\n**d**')).toEqual(['a', 'b']);
  });
});
