// Loads the library that its argument names, and has a native method of it map memory (maps_inside.c).
public class MapsInside {
    static native void map();

    public static void main(String[] arguments) {
        System.load(arguments[0]);
        map();
    }
}
